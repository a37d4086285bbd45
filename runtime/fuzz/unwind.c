/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * unwind.c: the unwinder with any call frame information, registers and stack.
 * In: registers, a stack, a module's tables. Out: a walk that ends, reads nothing outside the
 * module and no memory that is not there, and keeps errno. Knows nothing of real programs; its
 * seeds are pieces of their .eh_frame.
 *
 *   u8 functions   registers: 17 words   u8 count   stack: count words   tables: the rest
 *   a word         u8 kind: a value (three kinds), in the module, on the stack, behind it; its u16
 *   tables         0 functions: .eh_frame_hdr and .eh_frame as they are
 *                  else for each function u8 flags, u8 align, two programs: u8 length, bytes
 */
#define TCL_ASSERT_LEVEL 2
#include <dlfcn.h>
/* The one module that there is. */
static int find_object(void *pc, struct dl_find_object *result);
#define _dl_find_object find_object
#include "../assert.c"
#include "../track/unwind.c"
#include "input.h"
#include <sys/mman.h>

#define FRAMES_MAX 64 /* WALK_FRAMES of track/site.c */
/* The stack: two OS pages, then one that is not there, then one more. */
#define STACK_PAGES 2
#define FUNCTIONS_MAX 4
/* Code has no bytes here, so that a module is its tables; a word reaches so far into it. */
#define CODE_BYTES 65536
/* Of a module that is made: a head, and for each function an entry of it, a CIE and an FDE of at
 * most 300 bytes. */
#define MADE_BYTES_MAX 4096

__thread bool tcl_in_fork;
void tcl_warn(const char *what) {
    fprintf(stderr, "%s\n", what);
}

static uint8_t *module_start;
static size_t module_bytes;
static uint8_t *stack_start;

static int find_object(void *pc, struct dl_find_object *result) {
    if ((uintptr_t)pc - (uintptr_t)module_start >= CODE_BYTES)
        return -1;
    *result = (struct dl_find_object){.dlfo_map_start = module_start,
                                      .dlfo_map_end = module_start + module_bytes,
                                      .dlfo_eh_frame = module_start};
    return 0;
}

static uintptr_t take_word(struct input *in) {
    uint8_t kind = take_u8(in) % 6;
    uint16_t value = take_u16(in);
    switch (kind) {
    case 0:
        return value;
    case 1:
        return (uintptr_t)-1 - value;
    case 2:
        return (uintptr_t)value << 48 | value;
    case 3:
        return (uintptr_t)module_start + value;
    case 4:
        return (uintptr_t)stack_start + value % (STACK_PAGES * TCL_PAGE);
    default:
        return (uintptr_t)stack_start + STACK_PAGES * TCL_PAGE + value;
    }
}

/* ---- Making tables --------------------------------------------------------------------------- */

struct writer {
    uint8_t bytes[MADE_BYTES_MAX];
    size_t count;
};

static void write_bytes(struct writer *out, const void *from, size_t bytes) {
    MUST(out->count + bytes <= MADE_BYTES_MAX);
    memcpy(out->bytes + out->count, from, bytes);
    out->count += bytes;
}

static void put_u32(struct writer *out, uint32_t value) {
    write_bytes(out, &value, sizeof(value));
}

static void put_program(struct writer *out, struct input *in) {
    uint8_t program[255], bytes = take_u8(in);
    take_bytes(in, program, bytes);
    write_bytes(out, program, bytes);
}

/* Begins an entry; its length is known at its end. */
static size_t begin_entry(struct writer *out) {
    put_u32(out, 0);
    return out->count;
}

static void end_entry(struct writer *out, size_t begun) {
    uint32_t bytes = (uint32_t)(out->count - begun);
    memcpy(out->bytes + begun - sizeof(bytes), &bytes, sizeof(bytes));
}

/* The CIE and the FDE of a function; where its FDE is. */
static size_t put_function(struct writer *out, struct input *in, uint32_t begin, uint32_t bytes) {
    uint8_t flags = take_u8(in), align = take_u8(in);
    size_t cie = begin_entry(out);
    const char *augmentation = flags & 1 ? "zRS" : "zR";
    uint8_t tail[] = {1 + (flags >> 1 & 7), align & 0x7f, PC, 1, 0x1b};
    put_u32(out, 0);
    write_bytes(out, "\1", 1);
    write_bytes(out, augmentation, strlen(augmentation) + 1);
    write_bytes(out, tail, sizeof(tail));
    put_program(out, in);
    end_entry(out, cie);
    size_t fde = begin_entry(out);
    put_u32(out, (uint32_t)(out->count - (cie - 4)));
    put_u32(out, begin - (uint32_t)out->count); /* relative to its own place */
    put_u32(out, bytes);
    write_bytes(out, "", 1);
    put_program(out, in);
    end_entry(out, fde);
    return fde - 4;
}

static void make_tables(struct writer *out, struct input *in, unsigned functions) {
    uint8_t head[] = {1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, (uint8_t)functions, 0, 0, 0};
    uint32_t bytes = CODE_BYTES / functions;
    write_bytes(out, head, sizeof(head));
    size_t table = out->count;
    for (unsigned i = 0; i < 2 * functions; i++)
        put_u32(out, 0);
    for (unsigned i = 0; i < functions; i++) {
        uint32_t entry[2] = {i * bytes};
        entry[1] = (uint32_t)put_function(out, in, i * bytes, bytes);
        memcpy(out->bytes + table + i * sizeof(entry), entry, sizeof(entry));
    }
}

/* As large as it is, so that a read outside is seen. */
static void make_module(const void *from, size_t bytes) {
    module_start = malloc(bytes ? bytes : 1);
    MUST(module_start);
    module_bytes = bytes;
    memcpy(module_start, from, bytes);
}

/* ---- Walking --------------------------------------------------------------------------------- */

static void make_stack(void) {
    size_t bytes = (STACK_PAGES + 2) * TCL_PAGE;
    stack_start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stack_start != MAP_FAILED);
    MUST(!mprotect(stack_start, STACK_PAGES * TCL_PAGE, PROT_READ | PROT_WRITE));
    MUST(!mprotect(stack_start + (STACK_PAGES + 1) * TCL_PAGE, TCL_PAGE, PROT_READ | PROT_WRITE));
}

static void walk_all(struct walk *walk) {
    unsigned frames = 0;
    size_t distance;
    errno = EXDEV;
    while (frames < FRAMES_MAX && step(walk, &distance))
        frames++;
    MUST(errno == EXDEV);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct input in = {data, bytes};
    if (!stack_start)
        make_stack();
    unsigned functions = take_u8(&in) % (FUNCTIONS_MAX + 1);
    struct input words = in; /* read once the module has its place */
    uint8_t skipped[3 * 255];
    take_bytes(&in, skipped, 3 * REGISTERS);
    unsigned count = take_u8(&in);
    take_bytes(&in, skipped, 3 * count);
    struct writer made = {.count = 0};
    if (functions)
        make_tables(&made, &in, functions);
    make_module(functions ? made.bytes : in.at, functions ? made.count : in.left);
    struct walk walk = {.exact = true, .readable = {NO_PAGE, NO_PAGE, NO_PAGE, NO_PAGE}};
    for (int reg = 0; reg < REGISTERS; reg++)
        walk.reg[reg] = take_word(&words);
    take_u8(&words);
    for (unsigned i = 0; i < count; i++)
        ((uintptr_t *)stack_start)[i] = take_word(&words);
    walk_all(&walk);
    free(module_start);
    return 0;
}
