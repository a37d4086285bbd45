/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_frames.c: hand-written functions whose call frame information names a frame base that is
 * zero, small, misaligned, outside the address space or unmapped, or that is contradictory. An
 * allocation below them walks the stack through that frame. The walk must end there, the program
 * must survive, and errno must be kept.
 */
#include "hazard.h"

/* A function whose frame information names %rbp as base; sets %rbp to its argument, calls grab().
 */
__asm__(".text\n"
        ".globl with_frame_base\n"
        ".type with_frame_base, @function\n"
        "with_frame_base:\n"
        ".cfi_startproc\n"
        "  push %rbp\n"
        "  .cfi_def_cfa rbp, 16\n"
        "  .cfi_offset rbp, -16\n"
        "  mov %rdi, %rbp\n"
        "  call grab\n"
        "  pop %rbp\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size with_frame_base, .-with_frame_base\n");
void with_frame_base(uintptr_t base);

/* Its frame information computes the base by an expression (DW_OP_breg6 16), then sets the offset
 * of a base that is a register, which it is not. */
__asm__(".text\n"
        ".globl with_contradiction\n"
        ".type with_contradiction, @function\n"
        "with_contradiction:\n"
        ".cfi_startproc\n"
        "  push %rbp\n"
        "  mov %rsp, %rbp\n"
        "  .cfi_escape 0x0f, 0x02, 0x76, 0x10\n"
        "  .cfi_escape 0x0e, 0x10\n"
        "  .cfi_offset rbp, -16\n"
        "  call grab\n"
        "  pop %rbp\n"
        "  ret\n"
        ".cfi_endproc\n"
        ".size with_contradiction, .-with_contradiction\n");
void with_contradiction(void);

static int errno_seen;

/* At least one allocation of each kind: a small one, an object, and a mapping. */
__attribute__((used)) void grab(void) {
    errno = EXDEV;
    void *p = malloc(200000), *q = malloc(50);
    errno_seen = errno;
    CHECK(p && q);
    hazard_sink = p;
    free(p), free(q);
}

static int hosted(void) {
    char *unmapped = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(unmapped != MAP_FAILED);
    const uintptr_t bases[] = {
        0,
        8,
        0x800,
        4096,
        (uintptr_t)unmapped,
        1,
        UINTPTR_MAX,
        UINTPTR_MAX - 7,
        1ull << 47,
        1ull << 63,
        (uintptr_t)&unmapped | 3,
        (uintptr_t)unmapped + (1 << 20) - 8,
    };
    for (size_t i = 0; i < sizeof(bases) / sizeof(*bases); i++) {
        with_frame_base(bases[i]);
        CHECK(errno_seen == EXDEV, "errno is %d at frame base %#lx", errno_seen, bases[i]);
    }
    with_contradiction();
    CHECK(errno_seen == EXDEV, "errno is %d after a contradiction", errno_seen);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted();
    (void)argv;
    struct daemon d = {0};
    host(&d, "hosted");
    CHECK(d.session[0]->kinds[TCL_BORN] >= 12, "an object was not reported");
    printf("track_frames: invalid frame bases end the walk\n");
    close_daemon(&d);
    return 0;
}
