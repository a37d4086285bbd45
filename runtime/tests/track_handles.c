/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_handles.c: small objects behind handles move while threads write to them, and nothing is
 * lost; what is pinned often ends up in the fastest arena, the rest in the slowest; in forked
 * children, without a daemon, and with every error.
 * In: programs under a daemon with two arenas. Out: their exit status.
 */
#include "hazard.h"
#include "tiercel.h"
#include <pthread.h>

#define COUNT 4000u
#define BYTES 120u
#define THREADS 4u
#define WRITES 200000u /* of a thread */
#define FORKS 20

static struct tiercel_handle *handles[COUNT];
static _Atomic bool is_over;

static void make_all(void) {
    for (unsigned i = 0; i < COUNT; i++) {
        handles[i] = tiercel_handle_alloc(BYTES);
        CHECK(handles[i], "no memory");
        memset(tiercel_handle_pin(handles[i]), 0, BYTES);
        tiercel_handle_unpin(handles[i]);
    }
}

static void free_all(void) {
    for (unsigned i = 0; i < COUNT; i++)
        CHECK(!tiercel_handle_free(handles[i]), "object %u", i);
}

static uint64_t *pinned(unsigned i) {
    uint64_t *object = tiercel_handle_pin(handles[i]);
    CHECK(object && (uintptr_t)object % 16 == 0, "object %u", i);
    return object;
}

/* The object's address, for a comparison. */
static uintptr_t place_of(unsigned i) {
    uintptr_t place = (uintptr_t)pinned(i);
    tiercel_handle_unpin(handles[i]);
    return place;
}

/* ---- One thread ------------------------------------------------------------------------------ */

static bool fails(int result, int error) {
    return result == -1 && errno == error;
}

static void check_errors(void) {
    struct tiercel_handle *one = handles[0], *large = tiercel_handle_alloc(100000);
    CHECK(large && fails(tiercel_handle_move(large, TIERCEL_COLD), ENOTSUP), "%d", errno);
    memset(tiercel_handle_pin(large), 1, 100000);
    CHECK(fails(tiercel_handle_free(large), EBUSY), "freed while pinned");
    tiercel_handle_unpin(large);
    tiercel_handle_unpin(large); /* one too many */
    CHECK(!tiercel_handle_free(large) && !tiercel_handle_free(NULL), "%d", errno);
    CHECK(!tiercel_handle_alloc(SIZE_MAX) && errno == ENOMEM, "%d", errno);
    CHECK(fails(tiercel_handle_move(one, TIERCEL_ANY_TEMPERATURE), EINVAL), "%d", errno);
    for (unsigned pins = 0; pins < 32767; pins++)
        CHECK(tiercel_handle_pin(one), "pin %u", pins);
    CHECK(!tiercel_handle_pin(one) && errno == EAGAIN, "%d", errno);
    CHECK(fails(tiercel_handle_move(one, TIERCEL_COLD), EBUSY), "%d", errno);
    for (unsigned pins = 0; pins < 32767; pins++)
        tiercel_handle_unpin(one);
}

static void check_moves(void) {
    for (unsigned i = 0; i < COUNT; i++)
        pinned(i)[3] = i, tiercel_handle_unpin(handles[i]);
    errno = 4711;
    for (int round = 0; round < 4; round++)
        for (unsigned i = 0; i < COUNT; i++) {
            uintptr_t before = place_of(i);
            CHECK(!tiercel_handle_move(handles[i], round % 2 ? TIERCEL_HOT : TIERCEL_COLD),
                  "object %u: %m", i);
            CHECK(before != place_of(i) && pinned(i)[3] == i, "object %u", i);
            tiercel_handle_unpin(handles[i]);
        }
    CHECK(errno == 4711, "errno %d", errno);
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* Adds up, each in a word of its own. */
static void *writes(void *number) {
    unsigned mine = (unsigned)(uintptr_t)number, random = mine + 1;
    for (unsigned n = 0; n < WRITES; n++) {
        random = random * 1664525u + 1013904223u;
        unsigned i = (random >> 16) % COUNT;
        pinned(i)[mine]++;
        tiercel_handle_unpin(handles[i]);
    }
    return NULL;
}

/* Moves at random for as long as the others write. */
static void *moves(void *unused) {
    unsigned random = 7;
    while (!is_over) {
        random = random * 1664525u + 1013904223u;
        tiercel_handle_move(handles[(random >> 16) % COUNT],
                            random >> 31 ? TIERCEL_HOT : TIERCEL_COLD);
    }
    return unused;
}

static uint64_t sum_of(unsigned word) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        sum += pinned(i)[word];
        tiercel_handle_unpin(handles[i]);
    }
    return sum;
}

static void check_threads(void) {
    pthread_t mover, threads[THREADS];
    CHECK(!pthread_create(&mover, NULL, moves, NULL), "no thread");
    for (uintptr_t n = 0; n < THREADS; n++)
        CHECK(!pthread_create(&threads[n], NULL, writes, (void *)n), "no thread");
    for (unsigned n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    is_over = true;
    pthread_join(mover, NULL);
    for (unsigned n = 0; n < THREADS; n++)
        CHECK(sum_of(n) == WRITES, "%lu of %u writes of thread %u", sum_of(n), WRITES, n);
}

/* Forks while another thread moves: the child's objects are as they were, and its own. */
static void check_forks(void) {
    pthread_t mover;
    CHECK(!pthread_create(&mover, NULL, moves, NULL), "no thread");
    for (unsigned i = 0; i < COUNT; i++)
        pinned(i)[5] = i, tiercel_handle_unpin(handles[i]);
    for (int n = 0; n < FORKS; n++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "no child");
        for (unsigned i = 0; !pid && i < COUNT; i++) {
            CHECK(pinned(i)[5]++ == i, "object %u", i);
            tiercel_handle_unpin(handles[i]);
            tiercel_handle_move(handles[i], TIERCEL_COLD);
            CHECK(pinned(i)[5] == i + 1, "object %u", i);
            tiercel_handle_unpin(handles[i]);
        }
        if (!pid)
            free_all(), _exit(0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "child: %x", status);
    }
    is_over = true;
    pthread_join(mover, NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        CHECK(pinned(i)[5] == i, "object %u is its child's", i);
        tiercel_handle_unpin(handles[i]);
    }
}

/* ---- By pins --------------------------------------------------------------------------------- */

/* Pins these again and again, `rounds` times while the hand comes round: once in 65,536 pins. */
static void pin_for(unsigned first, unsigned end, unsigned rounds) {
    for (unsigned n = 0; n < rounds * 65536; n++)
        place_of(first + n % (end - first));
}

/* All begin among the hot ones. The hand sees what is not pinned twice in three rounds. */
static void check_by_pins(void) {
    uintptr_t before[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        before[i] = place_of(i);
    pin_for(0, COUNT / 8, 4);
    for (unsigned i = 0; i < COUNT; i++) {
        CHECK((before[i] == place_of(i)) == (i < COUNT / 8), "object %u", i);
        before[i] = place_of(i);
    }
    pin_for(COUNT / 2, COUNT / 2 + COUNT / 8, 2); /* now others are */
    for (unsigned i = COUNT / 2; i < COUNT / 2 + COUNT / 8; i++)
        CHECK(before[i] != place_of(i), "object %u", i);
}

static int hosted(const char *part) {
    make_all();
    if (!strcmp(part, "one thread"))
        check_errors(), check_moves();
    else if (!strcmp(part, "threads"))
        check_threads();
    else if (!strcmp(part, "forks"))
        check_forks();
    else if (!strcmp(part, "pins"))
        check_by_pins();
    else
        CHECK(fails(tiercel_handle_move(handles[0], TIERCEL_HOT), ENOMEM), "%d", errno);
    free_all();
    return 0;
}

/* ---- The test -------------------------------------------------------------------------------- */

/* Without a daemon all but moves works. */
static void check_alone(void) {
    make_all();
    CHECK(fails(tiercel_handle_move(handles[0], TIERCEL_COLD), ENOTSUP), "%d", errno);
    for (unsigned n = 0; n < THREADS; n++)
        writes((void *)(uintptr_t)n);
    CHECK(sum_of(0) == WRITES, "%lu", sum_of(0));
    free_all();
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    check_alone();
    const char *parts[] = {"one thread", "threads", "forks", "pins", "no room"};
    for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        struct daemon d = {.prepare = strcmp(parts[i], "no room") ? with_room : without_room};
        host(&d, parts[i]);
        close_daemon(&d);
    }
    printf("track_handles: moved under writes, by pins, in children, and not where it cannot be\n");
    return 0;
}
