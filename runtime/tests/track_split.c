/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_split.c: an object too large for the better arena's budget is born with its head there;
 * when it dies, shrinks or grows, all contents are kept. In: a session whose budget the test sets
 * while the program is stopped. Out: the rest of it.
 */
#include "hazard.h"

#define MIB (1ull << 20)
#define LARGE (16 * MIB) /* several times TCL_CUT_BYTES */

static void fill(unsigned char *p, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i += 512)
        p[i] = (unsigned char)((i >> 9) * 31 + seed);
}
static void check(const unsigned char *p, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i += 512)
        CHECK(p[i] == (unsigned char)((i >> 9) * 31 + seed), "byte %zu", i);
}

static unsigned char *make(size_t bytes) {
    unsigned char *p = malloc(bytes);
    CHECK(p, "no memory");
    fill(p, bytes, 1);
    return p;
}

static int hosted(void) {
    raise(SIGSTOP);
    unsigned char *first = make(LARGE);
    raise(SIGSTOP);
    unsigned char *second = make(LARGE), *third = make(LARGE);
    raise(SIGSTOP);
    free(make(MIB)); /* in two memories as well */
    raise(SIGSTOP);
    free(make(MIB)); /* but not for so little room */
    raise(SIGSTOP);
    /* Dies, shrinks below its head, grows beyond its end; then their memory is used again. */
    free(first);
    second = realloc(second, MIB);
    third = realloc(third, 3 * LARGE);
    CHECK(second && third, "no memory");
    check(second, MIB, 1);
    check(third, LARGE, 1);
    for (int i = 0; i < 100; i++) {
        unsigned char *p = make(LARGE + (size_t)i * MIB);
        check(p, LARGE, 1);
        free(p);
    }
    check(second, MIB, 1);
    check(third, LARGE, 1);
    free(second);
    free(third);
    raise(SIGSTOP);
    /* The budget is used up, but deaths refund it: a head, and all of a smaller object. */
    free(make(LARGE));
    free(make(MIB));
    raise(SIGSTOP);
    return 0;
}

static void prepare(struct session *s) {
    control_of(s)->arena_count = 2; /* both on node 0, the one there is everywhere */
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return hosted();
    struct daemon d = {.prepare = prepare};
    open_daemon(&d);
    pid_t pid = start_hosted(&d, "hosted");
    struct session *s = first_session(&d);
    wait_stop(pid);
    int64_t left = left_after(s, pid, 7 * MIB);
    CHECK(left == 0, "%ld left of 7 MiB: the head ends where the room ends", left);
    left = left_after(s, pid, 3 * MIB + TCL_PAGE);
    CHECK(left == 0, "%ld left of 3 MiB and an OS page: the first of two has a head", left);
    left = left_after(s, pid, MIB / 2 + TCL_PAGE - 1);
    CHECK(left == (int64_t)MIB / 2 + TCL_PAGE - 1, "%ld left: its head was refunded", left);
    left = left_after(s, pid, TCL_HEAD_LEAST - 1);
    CHECK(left == TCL_HEAD_LEAST - 1, "%ld left: no head is smaller", left);
    /* The daemon may write any budget. */
    left_after(s, pid, INT64_MIN);
    left = left_after(s, pid, 7 * MIB);
    CHECK(left > 6 * (int64_t)MIB, "%ld left of 7 MiB: deaths are refunded", left);
    kill(pid, SIGCONT);
    int status = serve(&d, pid);
    CHECK(status == 0, "wait status %x, stderr: %s", status, errors_of(&d));
    check_objects(s);
    CHECK(s->kinds[TCL_HEAD] == 4, "%lu heads were noted", s->kinds[TCL_HEAD]);
    printf("track_split: large objects are born with their head where there is room\n");
    close_daemon(&d);
    return 0;
}
