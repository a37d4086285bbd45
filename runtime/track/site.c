/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * site.c: finds the allocation site of a call.
 * In: return address and frame address of the public function. Out: an index into the site table;
 * entries of the site and module tables, stable under ASLR. Knows nothing of objects; unwind.c
 * walks the stack.
 *
 *   fast:  key = (return addresses 0 to 3, depth of the frame)  -> keys[] -> site
 *   slow:  walk the stack -> (module, offset) frames -> index[] by hash -> site, old or new
 *
 * Return addresses beyond the first are read without a walk: in most functions the distance from
 * one return address to the next is constant, and `steps` caches it from earlier walks. So the
 * sites behind xmalloc, PyMem_Malloc or operator new stay distinct. The depth (distance to the
 * thread's stack top) distinguishes most call paths that share these addresses.
 *
 * All tables are private and fixed in size; a full one gives site 0, "unknown", and is counted.
 */
#include "session.h"
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Cached keys: 2^16 * 8 bytes = 512 KiB, one for each site that may exist. */
#define KEYS (1u << 16)
/* Cached distances: 2^13 * 8 bytes = 64 KiB. Chosen, not measured. */
#define STEPS (1u << 13)
/* Cached code that accesses memory: 2^13 * 8 bytes = 64 KiB; and how much of it gets a number, so
 * that allocation sites keep most. Chosen, not measured. */
#define CODES (1u << 13)
/* At most half full, so that every search ends at an empty place. */
#define INDEX (TCL_SITES_MAX * 2)
/* Return addresses of a key beyond the first. Chosen, not measured: a wrapper or two between the
 * program and malloc. */
#define KEY_CALLERS TCL_CALL_OUTER
/* Walks that one return address may cost before keys leave out the depth (frames of varying size,
 * deep recursion make it useless), and before they leave out the callers too. Chosen, not measured:
 * they bound the cost of a program whose keys never repeat. */
#define WALKS_WITH_DEPTH 512
#define WALKS_WITH_CALLERS 4096
/* Frames of a walk: twice TCL_SITE_FRAMES, as wrappers and the runtime are skipped. Chosen, not
 * measured. */
#define WALK_FRAMES 64
/* Chosen, not measured: one OS page; a build-id's note has 36 bytes. */
#define NOTE_BYTES_MAX 4096
/* FNV-1a's 64-bit offset basis (draft-eastlake-fnv). */
#define HASH_BEGIN 0xcbf29ce484222325ull
#define LOCK_BUSY UINT32_MAX /* no site this time; the result is not cached */

extern void *__libc_stack_end __attribute__((weak));

struct module_range {
    uintptr_t start, end;
    const void *link_map;
};

struct tables {
    struct tcl_site site[TCL_SITES_MAX];
    struct tcl_module module[TCL_MODULES_MAX];
    struct module_range range[TCL_MODULES_MAX]; /* where it is loaded now; start 0: it is not */
    uint8_t is_runtime[TCL_MODULES_MAX], is_wrapper[TCL_MODULES_MAX];
    uint32_t index[INDEX];         /* site numbers by hash, open addressing */
    _Atomic uint64_t keys[KEYS];   /* tag << 16 | site; 0 empty */
    _Atomic uint64_t steps[STEPS]; /* return address << 16 | distance / 8; 0 empty */
    _Atomic uint16_t walks[STEPS]; /* by return address */
    _Atomic uint64_t codes[CODES]; /* return address << 16 | site; 0 empty */
    uint32_t code_count;           /* under site_lock */
};
static struct tables *tables;
static uint32_t site_count, module_count; /* under site_lock; 0 is "unknown" */
static const char own_code;               /* an address in this module */

/* Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4): 2^64 / golden ratio. */
static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15ull;
    return x ^ x >> 32;
}

/* ---- Publishing ------------------------------------------------------------------------------ */

static bool publish_site(uint32_t id) {
    tcl_assert(id < TCL_SITES_MAX);
    struct tcl_site *to = &tcl_sites()[id];
    if (!tcl_provide(to, sizeof(*to)))
        return false;
    memcpy(to, &tables->site[id], sizeof(*to));
    __atomic_store_n(&to->published, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&tcl_header()->site_count, site_count, __ATOMIC_RELEASE);
    return true;
}

static bool publish_module(uint32_t id) {
    tcl_assert(id < TCL_MODULES_MAX);
    struct tcl_module *to = &tcl_modules()[id];
    if (!tcl_provide(to, sizeof(*to)))
        return false;
    memcpy(to, &tables->module[id], sizeof(*to));
    __atomic_store_n(&to->published, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&tcl_header()->module_count, module_count, __ATOMIC_RELEASE);
    return true;
}

bool tcl_site_tables_overlap(uintptr_t start, uintptr_t end) {
    uintptr_t at = (uintptr_t)tables;
    return at && start < at + sizeof(*tables) && at < end;
}

bool tcl_site_start(void) {
    if (tables)
        return true;
    void *made = tcl_os_mmap(NULL, sizeof(struct tables), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return false;
    /* Written here and there: a huge OS page would be 2 MiB for some KiB. */
    syscall(SYS_madvise, made, sizeof(struct tables), MADV_NOHUGEPAGE);
    tables = made;
    site_count = 1;
    return true;
}

bool tcl_site_republish(void) {
    tcl_assert(tables);
    /* Since there is an epoch, other threads may be adding sites. */
    if (!tcl_lock(&tcl_process->site_lock))
        return false;
    bool whole = true;
    for (uint32_t id = 0; whole && id < module_count; id++)
        whole = publish_module(id);
    for (uint32_t id = 1; whole && id < site_count; id++)
        whole = publish_site(id);
    tcl_unlock(&tcl_process->site_lock);
    return whole;
}

uint64_t tcl_site_hash(uint32_t id) {
    return tables && id < TCL_SITES_MAX ? tables->site[id].hash : 0;
}

/* ---- Modules --------------------------------------------------------------------------------- */

static void copy_build_id(struct tcl_module *module, const uint8_t *note, size_t bytes) {
    while (bytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) head;
        memcpy(&head, note, sizeof(head));
        size_t name = (head.n_namesz + 3u) & ~3u, data = (head.n_descsz + 3u) & ~3u;
        if (name > NOTE_BYTES_MAX || data > NOTE_BYTES_MAX || sizeof(head) + name + data > bytes)
            return;
        const uint8_t *at = note + sizeof(head);
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && !memcmp(at, "GNU", 4) &&
            head.n_descsz <= TCL_BUILD_ID_MAX) {
            memcpy(module->build_id, at + name, head.n_descsz);
            module->build_id_bytes = (uint8_t)head.n_descsz;
            return;
        }
        note += sizeof(head) + name + data;
        bytes -= sizeof(head) + name + data;
    }
}

/* From the ELF header at the start of the mapping, when there is one. */
static void read_notes(struct tcl_module *module, const char *start, const char *end) {
    const ElfW(Ehdr) *elf = (const ElfW(Ehdr) *)start;
    if ((size_t)(end - start) < TCL_PAGE || memcmp(elf->e_ident, ELFMAG, SELFMAG) ||
        elf->e_phentsize != sizeof(ElfW(Phdr)) ||
        elf->e_phoff + elf->e_phnum * sizeof(ElfW(Phdr)) > TCL_PAGE)
        return;
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)(start + elf->e_phoff);
    for (unsigned i = 0; i < elf->e_phnum; i++) {
        const char *note = (const char *)(module->base + header[i].p_vaddr);
        if (header[i].p_type == PT_NOTE && header[i].p_memsz <= NOTE_BYTES_MAX && note >= start &&
            note + header[i].p_memsz <= end)
            copy_build_id(module, (const uint8_t *)note, header[i].p_memsz);
    }
}

static void read_path(struct tcl_module *module, const char *name) {
    char self[1024];
    size_t bytes = strlen(name);
    if (!bytes) { /* the program itself */
        int saved = errno;
        long got = syscall(SYS_readlink, "/proc/self/exe", self, sizeof(self));
        errno = saved;
        name = self;
        bytes = got > 0 ? (size_t)got : 0;
    }
    size_t skip = bytes > TCL_PATH_MAX ? bytes - TCL_PATH_MAX : 0;
    memcpy(module->path, name + skip, bytes - skip);
    module->path_bytes = (uint8_t)(bytes - skip);
}

/* Libraries whose frames do not identify the caller: operator new, std::string's buffers. */
static bool is_wrapper(const struct tcl_module *module) {
    static const char *const names[] = {"libstdc++.so", "libc++.so", "libc++abi.so"};
    const char *end = module->path + module->path_bytes, *name = end;
    while (name > module->path && name[-1] != '/')
        name--;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if ((size_t)(end - name) >= strlen(names[i]) && !memcmp(name, names[i], strlen(names[i])))
            return true;
    return false;
}

static bool same_module(const struct tcl_module *a, const struct tcl_module *b) {
    return a->base == b->base && a->build_id_bytes == b->build_id_bytes &&
           a->path_bytes == b->path_bytes &&
           !memcmp(a->build_id, b->build_id, sizeof(a->build_id)) &&
           !memcmp(a->path, b->path, a->path_bytes);
}

/* Number of the module that holds pc; TCL_NO_MODULE when none does. Under site_lock. */
static uint32_t module_of(uintptr_t pc) {
    tcl_assert_debug(tcl_is_locked(&tcl_process->site_lock));
    struct dl_find_object object;
    for (uint32_t id = 0; id < module_count; id++)
        if (pc >= tables->range[id].start && pc < tables->range[id].end)
            return id;
    if (_dl_find_object((void *)pc, &object))
        return TCL_NO_MODULE;
    struct tcl_module module = {.base = object.dlfo_link_map->l_addr};
    read_notes(&module, object.dlfo_map_start, object.dlfo_map_end);
    read_path(&module, object.dlfo_link_map->l_name);
    struct module_range range = {(uintptr_t)object.dlfo_map_start, (uintptr_t)object.dlfo_map_end,
                                 object.dlfo_link_map};
    uint32_t id = 0;
    while (id < module_count && !same_module(&tables->module[id], &module))
        id++;
    if (id == TCL_MODULES_MAX)
        return TCL_NO_MODULE;
    tables->range[id] = range;
    if (id < module_count)
        return id; /* it was unloaded and is loaded again */
    tables->module[id] = module;
    tables->is_wrapper[id] = is_wrapper(&module);
    tables->is_runtime[id] = (uintptr_t)&own_code - range.start < range.end - range.start;
    module_count++;
    return publish_module(id) ? id : TCL_NO_MODULE;
}

void tcl_site_forget(void) {
    if (!tables || !tcl_lock(&tcl_process->site_lock))
        return;
    tcl_forget_calls();
    for (uint32_t id = 0; id < module_count; id++)
        tables->range[id] = (struct module_range){0};
    for (size_t i = 0; i < KEYS; i++)
        if (atomic_load_explicit(&tables->keys[i], memory_order_relaxed))
            atomic_store_explicit(&tables->keys[i], 0, memory_order_relaxed);
    for (size_t i = 0; i < CODES; i++)
        if (atomic_load_explicit(&tables->codes[i], memory_order_relaxed))
            atomic_store_explicit(&tables->codes[i], 0, memory_order_relaxed);
    for (size_t i = 0; i < STEPS; i++)
        if (atomic_load_explicit(&tables->steps[i], memory_order_relaxed))
            atomic_store_explicit(&tables->steps[i], 0, memory_order_relaxed);
    tcl_unlock(&tcl_process->site_lock);
}

/* ---- The slow path --------------------------------------------------------------------------- */

struct site_walk {
    uintptr_t return_address; /* of the public function: the program's innermost frame */
    uintptr_t previous;
    bool has_begun;
    unsigned count;
    uintptr_t pc[TCL_SITE_FRAMES];
};

static _Atomic uint64_t *step_of(uintptr_t return_address) {
    return &tables->steps[mix(return_address, 1) % STEPS];
}

static bool frame_seen(uintptr_t pc, size_t distance, void *context) {
    struct site_walk *walk = context;
    walk->has_begun |= pc == walk->return_address;
    if (!walk->has_begun)
        return true;
    if (walk->previous && distance && distance / 8 <= 0xffff && distance % 8 == 0)
        atomic_store_explicit(step_of(walk->previous), walk->previous << 16 | distance / 8,
                              memory_order_relaxed);
    walk->previous = pc;
    if (!walk->count) {
        uint32_t module = module_of(pc - 1);
        if (module != TCL_NO_MODULE && (tables->is_runtime[module] || tables->is_wrapper[module]))
            return true;
    }
    tcl_assert(walk->count < TCL_SITE_FRAMES);
    walk->pc[walk->count++] = pc;
    return walk->count < TCL_SITE_FRAMES;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3ull;
    return hash;
}

/* Adds an address in a module, or in none, to a site and its hash. */
static void add_frame(struct tcl_site *site, uint32_t id, uintptr_t addr) {
    uint64_t offset = addr & ((1ull << 48) - 1), hash = site->hash;
    if (id != TCL_NO_MODULE) {
        const struct tcl_module *module = &tables->module[id];
        offset = (addr - module->base) & ((1ull << 48) - 1);
        if (module->build_id_bytes)
            hash = hash_bytes(hash, module->build_id, module->build_id_bytes);
        else
            hash = hash_bytes(hash, module->path, module->path_bytes);
        hash = hash_bytes(hash, &offset, sizeof(offset));
    } else {
        hash = hash_bytes(hash, &id, sizeof(id)); /* generated code has no stable offset */
    }
    site->hash = hash;
    site->frames[site->frame_count++] = (uint64_t)id << 48 | offset;
}

static void describe(const struct site_walk *walk, struct tcl_site *site) {
    for (unsigned i = 0; i < walk->count; i++)
        add_frame(site, module_of(walk->pc[i] - 1), walk->pc[i]);
}

/* Number of the site, old or new; 0 when the table is full. Under site_lock. */
static uint32_t intern(const struct tcl_site *site) {
    tcl_assert_debug(tcl_is_locked(&tcl_process->site_lock) && site_count <= TCL_SITES_MAX);
    /* Not by site->hash, which leaves out the addresses of generated code. */
    uint64_t place = 0;
    for (unsigned i = 0; i < site->frame_count; i++)
        place = mix(place, site->frames[i]);
    size_t at = place % INDEX;
    for (;; at = (at + 1) % INDEX) { /* ends: the index has twice as many places as sites */
        uint32_t id = tables->index[at];
        if (!id)
            break;
        const struct tcl_site *other = &tables->site[id];
        if (other->hash == site->hash && other->frame_count == site->frame_count &&
            !memcmp(other->frames, site->frames, sizeof(site->frames)))
            return id;
    }
    if (site_count == TCL_SITES_NAMED) {
        __atomic_fetch_add(&tcl_header()->site_overflows, 1, __ATOMIC_RELAXED);
        return 0;
    }
    uint32_t id = site_count++;
    tables->site[id] = *site;
    tables->index[at] = id;
    return publish_site(id) ? id : 0;
}

/* Not inlined, so that only a walk pays for its large stack frame. */
__attribute__((noinline)) static uint32_t resolve_by_walk(uintptr_t return_address) {
    struct site_walk walk = {.return_address = return_address};
    struct tcl_site site = {.hash = HASH_BEGIN};
    if (!tcl_lock(&tcl_process->site_lock))
        return LOCK_BUSY;
    tcl_unwind(WALK_FRAMES, frame_seen, &walk);
    if (!walk.count)
        walk.pc[walk.count++] = return_address;
    describe(&walk, &site);
    uint32_t id = intern(&site);
    tcl_unlock(&tcl_process->site_lock);
    tcl_image_check(); /* of a module that was loaded since, perhaps */
    return id;
}

uint32_t tcl_site_numbered(uint32_t id, uint32_t number) {
    if (!id || id >= TCL_SITES_MAX || !tcl_lock(&tcl_process->site_lock))
        return id;
    struct tcl_site site = tables->site[id];
    if (site.frame_count < TCL_SITE_FRAMES)
        site.frame_count++; /* else the number replaces the outermost frame */
    site.frames[site.frame_count - 1] = (uint64_t)TCL_NO_MODULE << 48 | number;
    site.hash = hash_bytes(site.hash, &number, sizeof(number));
    uint32_t numbered = intern(&site);
    tcl_unlock(&tcl_process->site_lock);
    return numbered ? numbered : id;
}

/* A site that differs from this one in its kind. */
static uint32_t intern_kind(struct tcl_site *site, enum tcl_site_kind kind) {
    site->kind = (uint16_t)kind;
    site->hash = hash_bytes(site->hash, &site->kind, sizeof(site->kind));
    return intern(site);
}

uint32_t tcl_site_of_kind(uint32_t id, enum tcl_site_kind kind) {
    if (!tables || id >= TCL_SITES_MAX || !tcl_lock(&tcl_process->site_lock))
        return id;
    struct tcl_site site = tables->site[id];
    site.hash = id ? site.hash : HASH_BEGIN;
    uint32_t other = intern_kind(&site, kind);
    tcl_unlock(&tcl_process->site_lock);
    return other ? other : id;
}

bool tcl_site_of_segment(uintptr_t start, enum tcl_site_kind kind, uint32_t *site_id) {
    struct dl_find_object object;
    if (!tables || _dl_find_object((void *)start, &object) || !tcl_lock(&tcl_process->site_lock))
        return false;
    uint32_t id = module_of(start);
    *site_id = 0;
    if (id != TCL_NO_MODULE && !tables->is_runtime[id]) {
        struct tcl_site site = {.hash = HASH_BEGIN};
        add_frame(&site, id, start);
        *site_id = intern_kind(&site, kind);
    }
    tcl_unlock(&tcl_process->site_lock);
    return true;
}

/* ---- The fast path --------------------------------------------------------------------------- */

static uintptr_t stack_top(void) {
    uintptr_t end = &__libc_stack_end ? (uintptr_t)__libc_stack_end : 0;
    uintptr_t thread = (uintptr_t)__builtin_thread_pointer(), here = (uintptr_t)&end;
    /* A thread's descriptor lies above its stack; the first thread's does not. */
    return thread > here && (end < here || thread < end) ? thread : end;
}

static uint64_t key_of(uintptr_t return_address, uintptr_t frame, unsigned walks) {
    uint64_t key = mix(return_address, 0);
    if (walks >= WALKS_WITH_CALLERS)
        return key;
    const uintptr_t *place = (const uintptr_t *)frame - 1; /* below the frame address */
    if (*place == return_address) {
        uintptr_t pc = return_address;
        for (int i = 0; i < KEY_CALLERS; i++) {
            uint64_t step = atomic_load_explicit(step_of(pc), memory_order_relaxed);
            if (step >> 16 != pc)
                break;
            place += step & 0xffff;
            pc = *place;
            key = mix(key, pc);
        }
    }
    if (walks < WALKS_WITH_DEPTH)
        key = mix(key, stack_top() - frame);
    return key;
}

uint32_t tcl_site_here(void *return_address, void *frame_address) {
    if (tcl_unlikely(!tcl_attached()))
        return 0;
    uintptr_t from = (uintptr_t)return_address;
    _Atomic uint16_t *walks = &tables->walks[mix(from, 2) % STEPS];
    unsigned walked = atomic_load_explicit(walks, memory_order_relaxed);
    uint64_t key = key_of(from, (uintptr_t)frame_address, walked);
    for (unsigned way = 0; way < 2; way++) {
        _Atomic uint64_t *slot = &tables->keys[(key % KEYS) ^ way];
        uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);
        if (tcl_likely(entry && entry >> 16 == key >> 16))
            return (uint32_t)(entry & 0xffff);
    }
    uint32_t site = resolve_by_walk(from);
    if (walked < UINT16_MAX)
        atomic_store_explicit(walks, (uint16_t)(walked + 1), memory_order_relaxed);
    if (site == LOCK_BUSY)
        return 0;
    /* The walk has filled `steps`, so that the key may have more callers now. */
    key = key_of(from, (uintptr_t)frame_address, walked + 1);
    _Atomic uint64_t *slot = &tables->keys[key % KEYS];
    if (atomic_load_explicit(slot, memory_order_relaxed))
        slot = &tables->keys[(key % KEYS) ^ 1];
    atomic_store_explicit(slot, (key & ~0xffffull) | site, memory_order_relaxed);
    return site;
}

__attribute__((noinline)) static uint32_t number_code(uintptr_t from) {
    struct tcl_site site = {.hash = HASH_BEGIN};
    if (!tcl_lock(&tcl_process->site_lock))
        return LOCK_BUSY;
    uint32_t id = 0, before = site_count;
    if (tables->code_count < CODES) {
        add_frame(&site, module_of(from - 1), from);
        id = intern(&site);
        tables->code_count += site_count - before;
    }
    tcl_unlock(&tcl_process->site_lock);
    return id;
}

uint32_t tcl_site_of_code(uintptr_t from) {
    if (tcl_unlikely(!tcl_attached() || !from))
        return 0;
    _Atomic uint64_t *slot = &tables->codes[mix(from, 3) % CODES];
    uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);
    if (tcl_likely(entry >> 16 == from))
        return (uint32_t)(entry & 0xffff);
    uint32_t id = number_code(from);
    if (id == LOCK_BUSY)
        return 0;
    atomic_store_explicit(slot, (uint64_t)from << 16 | id, memory_order_relaxed);
    return id;
}

_Atomic uint32_t tcl_calls_forgotten;

void tcl_forget_calls(void) {
    atomic_fetch_add_explicit(&tcl_calls_forgotten, 1, memory_order_relaxed);
}

bool tcl_call_learn(uintptr_t return_address, uintptr_t frame, struct tcl_call *call) {
    unsigned walks =
        atomic_load_explicit(&tables->walks[mix(return_address, 2) % STEPS], memory_order_relaxed);
    *call = (struct tcl_call){.return_address = return_address};
    call->frame = walks < WALKS_WITH_DEPTH ? frame : 0;
    const uintptr_t *start = (const uintptr_t *)frame - 1, *place = start;
    if (walks >= WALKS_WITH_CALLERS || *place != return_address)
        return true;
    for (uintptr_t pc = return_address; call->count < KEY_CALLERS;) {
        uint64_t step = atomic_load_explicit(step_of(pc), memory_order_relaxed);
        if (step >> 16 != pc)
            break;
        place += step & 0xffff;
        pc = *place;
        if (place - start > UINT16_MAX)
            return false;
        call->distance[call->count] = (uint16_t)(place - start);
        call->outer[call->count++] = pc;
    }
    return true;
}
