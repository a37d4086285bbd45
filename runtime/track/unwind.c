/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * unwind.c: walks the calling thread's stack by the call frame information that every x86-64
 * program carries. In: nothing. Out: return addresses, innermost first. Knows nothing of sites or
 * sessions.
 *
 * No existing unwinder may run inside malloc: glibc's backtrace allocates, libunwind locks and
 * brings liblzma, and both it and libgcc read memory that a damaged frame points to. Here every OS
 * page of stack is probed before it is read, every read of a table is bounded, and anything unusual
 * ends the walk. _dl_find_object finds modules without a lock, also in signal handlers.
 *
 *   pc -> _dl_find_object -> .eh_frame_hdr: binary search -> FDE, CIE -> rules at pc -> caller
 */
#include "session.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

/* DWARF register numbers: System V ABI for x86-64, figure "DWARF Register Number Mapping". */
enum { RBX = 3, RBP = 6, RSP = 7, R12 = 12, PC = 16, REGISTERS = 17 };
/* Register rules: DWARF 5, section 6.4.1. */
enum rule_kind {
    SAME = 0,
    UNDEFINED,
    AT_OFFSET,
    IS_OFFSET,
    IN_REGISTER,
    AT_EXPRESSION,
    IS_EXPRESSION
};

/* Nested DW_CFA_remember_state. Chosen, not measured: compilers nest none. */
#define REMEMBER_MAX 4
/* Depth of an expression's stack. Chosen, not measured: those of linkage tables need four. */
#define EXPRESSION_MAX 16
/* Of a binary search; the count of entries has 32 bits. */
#define SEARCH_STEPS 32
/* Instructions of one description. Chosen, not measured: it only has to bound the loop. */
#define INSTRUCTIONS_MAX 4096
/* OS pages of stack remembered as readable. Chosen, not measured: 16 KiB of stack at a time. */
#define READABLE_PAGES 4
#define NO_PAGE ((uintptr_t)1) /* never the address of an OS page, as 0 may be */

struct reader {
    const uint8_t *at, *end;
    bool failed;
};

struct row { /* how to recover the caller's registers */
    uint8_t kind[REGISTERS];
    uint8_t cfa_is_expression;
    uint16_t cfa_register;
    int64_t value[REGISTERS]; /* an offset, a register, or the address of an expression */
    int64_t cfa_value;
};

struct frame_info { /* of the FDE that covers pc, and its CIE */
    struct reader initial, program;
    uint64_t code_align;
    int64_t data_align;
    uintptr_t begin, end;
    bool is_signal;
};

struct walk {
    uintptr_t reg[REGISTERS];
    uintptr_t readable[READABLE_PAGES]; /* OS pages of stack found readable */
    unsigned next_readable;
    bool exact; /* pc is an interrupted instruction, not a return address */
};

/* ---- Reading --------------------------------------------------------------------------------- */

static uint64_t read_fixed(struct reader *in, unsigned bytes) {
    uint64_t value = 0;
    if ((size_t)(in->end - in->at) < bytes) {
        in->failed = true;
        return 0;
    }
    memcpy(&value, in->at, bytes);
    in->at += bytes;
    return value;
}

static uint64_t read_leb(struct reader *in, bool is_signed) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte = (uint8_t)read_fixed(in, 1);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            if (is_signed && (byte & 0x40) && shift + 7 < 64)
                value |= ~0ull << (shift + 7);
            return value;
        }
    }
    in->failed = true;
    return 0;
}

static void skip(struct reader *in, uint64_t bytes) {
    if ((uint64_t)(in->end - in->at) < bytes)
        in->failed = true;
    else
        in->at += bytes;
}

/* An address by its DW_EH_PE_* encoding (Linux Standard Base, "DWARF Extensions"). */
static uintptr_t read_encoded(struct reader *in, uint8_t encoding) {
    uintptr_t here = (uintptr_t)in->at, value;
    switch (encoding & 0x0f) {
    case 0x00:
    case 0x04:
    case 0x0c:
        value = read_fixed(in, 8);
        break;
    case 0x03:
        value = read_fixed(in, 4);
        break;
    case 0x0b:
        value = (uintptr_t)(int64_t)(int32_t)read_fixed(in, 4);
        break;
    default:
        in->failed = true;
        return 0;
    }
    if ((encoding & 0xf0) == 0x10)
        return here + value;
    if (encoding & 0xf0)
        in->failed = true;
    return value;
}

/* Reads a word of stack; false when it is not mapped. rt_sigprocmask with an unknown operation
 * probes the memory: the kernel copies the set in first, and refuses the operation (EINVAL) after.
 * A damaged frame may point to any memory, also to what AddressSanitizer guards.
 */
__attribute__((no_sanitize("address"))) static bool peek(struct walk *walk, uintptr_t addr,
                                                         uintptr_t *value) {
    if (addr % sizeof(uintptr_t))
        return false;
    uintptr_t page = addr & -(uintptr_t)TCL_PAGE;
    bool known = false;
    for (unsigned i = 0; i < READABLE_PAGES; i++)
        known |= walk->readable[i] == page;
    if (!known) {
        int saved = errno;
        bool there = syscall(SYS_rt_sigprocmask, ~0, page, NULL, 8) != 0 && errno == EINVAL;
        errno = saved;
        if (!there)
            return false;
        walk->readable[walk->next_readable++ % READABLE_PAGES] = page;
    }
    memcpy(value, (const void *)addr, sizeof(*value));
    return true;
}

/* ---- Finding the frame's description --------------------------------------------------------- */

static bool parse_cie(struct reader cie, struct frame_info *info, uint8_t *encoding) {
    uint64_t length = read_fixed(&cie, 4);
    if (cie.failed || length >= 0xfffffff0u || length > (uint64_t)(cie.end - cie.at))
        return false;
    cie.end = cie.at + length;
    uint32_t id = (uint32_t)read_fixed(&cie, 4);
    uint8_t version = (uint8_t)read_fixed(&cie, 1);
    const char *augmentation = (const char *)cie.at;
    const uint8_t *zero = memchr(cie.at, 0, (size_t)(cie.end - cie.at));
    if (cie.failed || id || (version != 1 && version != 3) || !zero || *augmentation != 'z')
        return false;
    cie.at = zero + 1;
    info->code_align = read_leb(&cie, false);
    info->data_align = (int64_t)read_leb(&cie, true);
    uint64_t return_register = version == 1 ? read_fixed(&cie, 1) : read_leb(&cie, false);
    uint64_t data_bytes = read_leb(&cie, false);
    struct reader data = cie;
    skip(&cie, data_bytes);
    if (cie.failed || return_register != PC)
        return false;
    for (const char *letter = augmentation + 1; *letter; letter++) {
        if (*letter == 'R') {
            *encoding = (uint8_t)read_fixed(&data, 1);
        } else if (*letter == 'S') {
            info->is_signal = true;
        } else if (*letter == 'L') {
            skip(&data, 1);
        } else if (*letter == 'P') {
            uint8_t how = (uint8_t)read_fixed(&data, 1) & 0x7f;
            read_encoded(&data, how);
        } else {
            return false;
        }
    }
    info->initial = cie;
    return !data.failed;
}

static bool parse_fde(const uint8_t *at, const uint8_t *low, const uint8_t *high,
                      struct frame_info *info) {
    struct reader fde = {.at = at, .end = high};
    if (at < low || at >= high)
        return false;
    uint64_t length = read_fixed(&fde, 4);
    if (fde.failed || length >= 0xfffffff0u || length > (uint64_t)(fde.end - fde.at))
        return false;
    fde.end = fde.at + length;
    const uint8_t *here = fde.at;
    uint64_t back = read_fixed(&fde, 4);
    if (fde.failed || !back || back > (uint64_t)(here - low))
        return false;
    uint8_t encoding = 0;
    if (!parse_cie((struct reader){.at = here - back, .end = high}, info, &encoding))
        return false;
    info->begin = read_encoded(&fde, encoding);
    info->end = info->begin + read_encoded(&fde, encoding & 0x0f);
    skip(&fde, read_leb(&fde, false));
    info->program = fde;
    return !fde.failed;
}

/* The sorted table of .eh_frame_hdr: pairs (first address, FDE), both relative to the header. */
static bool find_frame(uintptr_t pc, struct frame_info *info) {
    struct dl_find_object object;
    if (_dl_find_object((void *)pc, &object) || !object.dlfo_eh_frame)
        return false;
    const uint8_t *low = object.dlfo_map_start, *high = object.dlfo_map_end;
    const uint8_t *header = object.dlfo_eh_frame;
    if (header < low || header + 12 > high || header[0] != 1 || header[2] != 0x03 ||
        header[3] != 0x3b || (header[1] & 0x0f) != 0x0b)
        return false;
    uint32_t count;
    memcpy(&count, header + 8, 4);
    const int32_t(*table)[2] = (const int32_t(*)[2])(header + 12);
    if (!count || count > (size_t)(high - header - 12) / 8)
        return false;
    uint32_t first = 0, last = count;
    for (int i = 0; i < SEARCH_STEPS && last - first > 1; i++) {
        uint32_t middle = first + (last - first) / 2;
        if ((uintptr_t)(header + table[middle][0]) <= pc)
            first = middle;
        else
            last = middle;
    }
    return parse_fde(header + table[first][1], low, high, info) && pc >= info->begin &&
           pc < info->end;
}

/* ---- Executing it ---------------------------------------------------------------------------- */

static void set_rule(struct row *row, uint64_t reg, uint8_t kind, int64_t value) {
    if (reg < REGISTERS) {
        row->kind[reg] = kind;
        row->value[reg] = value;
    }
}

/* A number in units of the CIE. In a damaged table both may be anything: the product wraps. */
static int64_t read_factored(struct reader *in, bool is_signed, const struct frame_info *info) {
    return (int64_t)(read_leb(in, is_signed) * (uint64_t)info->data_align);
}

static void set_expression(struct reader *in, struct row *row, uint64_t reg, uint8_t kind) {
    set_rule(row, reg, kind, (int64_t)(uintptr_t)in->at);
    skip(in, read_leb(in, false));
}

/* Instructions whose opcode fills the byte (DWARF 5, section 7.24); false: unknown. */
static bool extended(struct reader *in, uint8_t code, const struct frame_info *info,
                     struct row *row) {
    uint64_t reg;
    switch (code) {
    case 0x00: /* nop */
        return true;
    case 0x05: /* offset_extended */
        reg = read_leb(in, false);
        set_rule(row, reg, AT_OFFSET, read_factored(in, false, info));
        return true;
    case 0x07: /* undefined */
        set_rule(row, read_leb(in, false), UNDEFINED, 0);
        return true;
    case 0x08: /* same_value */
        set_rule(row, read_leb(in, false), SAME, 0);
        return true;
    case 0x09: /* register */
        reg = read_leb(in, false);
        set_rule(row, reg, IN_REGISTER, (int64_t)read_leb(in, false));
        return true;
    case 0x0c: /* def_cfa */
        row->cfa_register = (uint16_t)read_leb(in, false);
        row->cfa_value = (int64_t)read_leb(in, false);
        row->cfa_is_expression = false;
        return true;
    case 0x0d: /* def_cfa_register; like the next, not of an expression (DWARF 5, 6.4.2.2) */
        row->cfa_register = (uint16_t)read_leb(in, false);
        return !row->cfa_is_expression;
    case 0x0e: /* def_cfa_offset */
        row->cfa_value = (int64_t)read_leb(in, false);
        return !row->cfa_is_expression;
    case 0x0f: /* def_cfa_expression */
        row->cfa_value = (int64_t)(uintptr_t)in->at;
        row->cfa_is_expression = true;
        skip(in, read_leb(in, false));
        return true;
    case 0x10: /* expression */
        set_expression(in, row, read_leb(in, false), AT_EXPRESSION);
        return true;
    case 0x11: /* offset_extended_sf */
        reg = read_leb(in, false);
        set_rule(row, reg, AT_OFFSET, read_factored(in, true, info));
        return true;
    case 0x12: /* def_cfa_sf */
        row->cfa_register = (uint16_t)read_leb(in, false);
        row->cfa_value = read_factored(in, true, info);
        row->cfa_is_expression = false;
        return true;
    case 0x16: /* val_expression */
        set_expression(in, row, read_leb(in, false), IS_EXPRESSION);
        return true;
    case 0x2e: /* GNU_args_size */
        read_leb(in, false);
        return true;
    default:
        return false;
    }
}

/* Executes an instruction that moves the location; false when `code` is none. */
static bool advance(struct reader *in, uint8_t code, uint64_t align, uintptr_t *location) {
    if (code >> 6 == 1)
        *location += (code & 0x3f) * align;
    else if (code == 0x02)
        *location += read_fixed(in, 1) * align;
    else if (code == 0x03)
        *location += read_fixed(in, 2) * align;
    else if (code == 0x04)
        *location += read_fixed(in, 4) * align;
    else
        return false;
    return true;
}

static bool execute(struct reader in, const struct frame_info *info, uintptr_t pc,
                    const struct row *initial, struct row *row) {
    struct row remembered[REMEMBER_MAX];
    unsigned depth = 0;
    uintptr_t location = info->begin;
    for (int i = 0; i < INSTRUCTIONS_MAX && in.at < in.end && !in.failed; i++) {
        uint8_t code = (uint8_t)read_fixed(&in, 1), low = code & 0x3f;
        if (advance(&in, code, info->code_align, &location)) {
            if (location > pc)
                return !in.failed;
        } else if (code >> 6 == 2) { /* offset */
            set_rule(row, low, AT_OFFSET, read_factored(&in, false, info));
        } else if (code >> 6 == 3 || code == 0x06) { /* restore */
            uint64_t reg = code == 0x06 ? read_leb(&in, false) : low;
            if (reg < REGISTERS)
                set_rule(row, reg, initial->kind[reg], initial->value[reg]);
        } else if (code == 0x0a) { /* remember_state */
            if (depth == REMEMBER_MAX)
                return false;
            remembered[depth++] = *row;
        } else if (code == 0x0b) { /* restore_state */
            if (!depth)
                return false;
            *row = remembered[--depth];
        } else if (!extended(&in, code, info, row)) {
            return false;
        }
    }
    return !in.failed;
}

/* ---- Expressions, of linkage tables, realigned stacks and signal frames ---------------------- */

struct stack {
    uint64_t word[EXPRESSION_MAX];
    unsigned depth;
    bool failed;
};

static void put(struct stack *stack, uint64_t value) {
    if (stack->depth == EXPRESSION_MAX)
        stack->failed = true;
    else
        stack->word[stack->depth++] = value;
}

static uint64_t take(struct stack *stack) {
    if (!stack->depth) {
        stack->failed = true;
        return 0;
    }
    return stack->word[--stack->depth];
}

static void operate(struct stack *stack, uint8_t code) {
    uint64_t b = take(stack), a = take(stack);
    switch (code) {
    case 0x1a: /* and */
        put(stack, a & b);
        return;
    case 0x1c: /* minus */
        put(stack, a - b);
        return;
    case 0x22: /* plus */
        put(stack, a + b);
        return;
    case 0x24: /* shl */
        put(stack, b < 64 ? a << b : 0);
        return;
    case 0x2a: /* ge */
        put(stack, (int64_t)a >= (int64_t)b);
        return;
    default:
        stack->failed = true;
    }
}

static bool evaluate(struct walk *walk, int64_t expression, const uint8_t *end, bool has_cfa,
                     uintptr_t cfa, uintptr_t *value) {
    struct reader in = {.at = (const uint8_t *)(uintptr_t)expression, .end = end};
    uint64_t bytes = read_leb(&in, false);
    if (in.failed || bytes > (uint64_t)(in.end - in.at))
        return false;
    in.end = in.at + bytes;
    struct stack stack = {.depth = 0};
    if (has_cfa)
        put(&stack, cfa);
    while (in.at < in.end && !in.failed && !stack.failed) {
        uint8_t code = (uint8_t)read_fixed(&in, 1);
        if (code >= 0x30 && code <= 0x4f) { /* lit */
            put(&stack, code - 0x30u);
        } else if (code >= 0x70 && code <= 0x80) { /* breg */
            uint64_t offset = read_leb(&in, true);
            put(&stack, walk->reg[code - 0x70] + offset);
        } else if (code == 0x06) { /* deref */
            uintptr_t word = 0;
            stack.failed |= !peek(walk, take(&stack), &word);
            put(&stack, word);
        } else if (code == 0x23) { /* plus_uconst */
            put(&stack, take(&stack) + read_leb(&in, false));
        } else if (code == 0x08 || code == 0x09) { /* const1u, const1s */
            uint64_t byte = read_fixed(&in, 1);
            put(&stack, code == 0x08 ? byte : (uint64_t)(int64_t)(int8_t)byte);
        } else {
            operate(&stack, code);
        }
    }
    *value = take(&stack);
    return !in.failed && !stack.failed;
}

/* ---- Walking --------------------------------------------------------------------------------- */

static bool find_cfa(struct walk *walk, const struct row *row, const uint8_t *end, uintptr_t *cfa) {
    if (row->cfa_is_expression)
        return evaluate(walk, row->cfa_value, end, false, 0, cfa);
    if (row->cfa_register >= REGISTERS)
        return false;
    *cfa = walk->reg[row->cfa_register] + (uintptr_t)row->cfa_value;
    return true;
}

static bool recover(struct walk *walk, const struct row *row, int reg, uintptr_t cfa,
                    const uint8_t *end, uintptr_t *value) {
    int64_t rule = row->value[reg];
    switch (row->kind[reg]) {
    case SAME:
        *value = reg == RSP ? cfa : walk->reg[reg];
        return reg != PC;
    case AT_OFFSET:
        return peek(walk, cfa + (uintptr_t)rule, value);
    case IS_OFFSET:
        *value = cfa + (uintptr_t)rule;
        return true;
    case IN_REGISTER:
        *value = rule >= 0 && rule < REGISTERS ? walk->reg[rule] : 0;
        return true;
    case AT_EXPRESSION:
        return evaluate(walk, rule, end, true, cfa, value) && peek(walk, *value, value);
    case IS_EXPRESSION:
        return evaluate(walk, rule, end, true, cfa, value);
    default: /* undefined: for PC, this is the outermost frame */
        *value = 0;
        return reg != PC;
    }
}

/* From a frame to its caller's. `distance`: see tcl_frame_seen. */
static bool step(struct walk *walk, size_t *distance) {
    struct frame_info info = {.is_signal = false};
    uintptr_t pc = walk->reg[PC] - !walk->exact;
    if (!find_frame(pc, &info))
        return false;
    struct row initial = {.cfa_value = 0}, row;
    struct row nothing = initial;
    if (!execute(info.initial, &info, (uintptr_t)-1, &nothing, &initial))
        return false;
    row = initial;
    uintptr_t cfa, next[REGISTERS];
    if (!execute(info.program, &info, pc, &initial, &row) ||
        !find_cfa(walk, &row, info.program.end, &cfa))
        return false;
    for (int reg = 0; reg < REGISTERS; reg++)
        if (!recover(walk, &row, reg, cfa, info.program.end, &next[reg]))
            return false;
    if (!next[PC] || (next[RSP] <= walk->reg[RSP] && !info.is_signal))
        return false;
    bool is_fixed = !row.cfa_is_expression && row.cfa_register == RSP && !info.is_signal &&
                    !walk->exact && row.kind[PC] == AT_OFFSET;
    *distance = is_fixed ? (size_t)row.cfa_value : 0;
    walk->exact = info.is_signal;
    memcpy(walk->reg, next, sizeof(next));
    return true;
}

__attribute__((noinline)) void tcl_unwind(unsigned most, tcl_frame_seen *seen, void *context) {
    struct walk walk;
    memset(&walk, 0, sizeof(walk));
    __asm__ volatile("movq %%rbx, 24(%0)\n\t"
                     "movq %%rbp, 48(%0)\n\t"
                     "movq %%rsp, 56(%0)\n\t"
                     "movq %%r12, 96(%0)\n\t"
                     "movq %%r13, 104(%0)\n\t"
                     "movq %%r14, 112(%0)\n\t"
                     "movq %%r15, 120(%0)\n\t"
                     "leaq 0f(%%rip), %%rax\n\t"
                     "movq %%rax, 128(%0)\n"
                     "0:"
                     :
                     : "r"(walk.reg)
                     : "rax", "memory");
    walk.exact = true;
    for (unsigned i = 0; i < READABLE_PAGES; i++)
        walk.readable[i] = NO_PAGE;
    walk.readable[0] = walk.reg[RSP] & -(uintptr_t)TCL_PAGE;
    size_t distance = 0;
    for (unsigned i = 0; i < most && step(&walk, &distance); i++)
        if (!seen(walk.reg[PC], distance, context))
            return;
}

#else /* Other machines: the caller's return address alone makes the site. */

void tcl_unwind(unsigned most, tcl_frame_seen *seen, void *context) {
    (void)most, (void)seen, (void)context;
}

#endif
