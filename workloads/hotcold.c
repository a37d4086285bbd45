/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * hotcold: a few hot objects among many cold ones, allocated in turns at two sites.
 * In: sizes, shares. Out: one line; right when the objects account for every access.
 * Knows nothing of tiers. The site distinguishes hot objects from cold ones.
 */
#include "workload.h"

enum { OBJECTS, OBJECT_KIB, HOT_OBJECTS, HOT_SHARE, ACCESSES, SECONDS, SHOW, SEED, CORRUPT };

static struct option options[] = {
    [OBJECTS] = {"objects", 64, "how many objects"},
    [OBJECT_KIB] = {"kib", 4096, "KiB of each"},
    [HOT_OBJECTS] = {"hot", 8, "how many of them are hot"},
    [HOT_SHARE] = {"share", 90, "percent of the accesses that go to hot objects"},
    [ACCESSES] = {"accesses", 50000000, "how many accesses a round"},
    [SECONDS] = {"seconds", 0, "rounds are repeated for this long; 0: one round"},
    [SHOW] = {"show", 0, "1: print the ranges of the hot objects"},
    [SEED] = {"seed", 42, "of the accesses"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt a word, which the check must detect"},
};

SITE uint64_t *make_hot(size_t bytes) {
    return memset(must_alloc(bytes), 0, bytes);
}

SITE uint64_t *make_cold(size_t bytes) {
    return memset(must_alloc(bytes), 0, bytes);
}

/* Allocates the objects, hot ones spread evenly among the cold; `objects` has hot ones first. */
static void make_objects(uint64_t **objects, uint64_t count, uint64_t hot, size_t bytes) {
    uint64_t hot_made = 0, cold_made = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (hot_made * count < (i + 1) * hot && hot_made < hot) {
            objects[hot_made] = make_hot(bytes);
            if (options[SHOW].value) {
                show_range("hot", objects[hot_made], bytes);
            }
            hot_made++;
        } else {
            objects[hot + cold_made++] = make_cold(bytes);
        }
    }
}

/* One round: adds 1 to a random word of a random object, hot or cold by the given share. */
static void touch(uint64_t **objects, uint64_t count, uint64_t hot, uint64_t words,
                  uint64_t *state) {
    uint64_t share = hot == count ? 100 : hot == 0 ? 0 : options[HOT_SHARE].value;
    for (uint64_t n = 0; n < options[ACCESSES].value; n++) {
        bool to_hot = random_below(state, 100) < share;
        uint64_t which = to_hot ? random_below(state, hot) : hot + random_below(state, count - hot);
        objects[which][random_below(state, words)]++;
    }
}

static uint64_t sum(uint64_t **objects, uint64_t count, uint64_t words) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t w = 0; w < words; w++) {
            total += objects[i][w];
        }
    }
    return total;
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t count = options[OBJECTS].value, hot = options[HOT_OBJECTS].value;
    size_t bytes = options[OBJECT_KIB].value << 10;
    if (count == 0 || hot > count || bytes == 0) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t **objects = must_alloc(count * sizeof *objects);
    make_objects(objects, count, hot, bytes);
    uint64_t state = seeded(options[SEED].value, 0), rounds = 0, start = region_begin();
    do {
        touch(objects, count, hot, bytes / sizeof(uint64_t), &state);
        rounds++;
    } while (now_ns() - start < options[SECONDS].value * 1000000000);
    uint64_t took = region_end(start);
    uint64_t accesses = rounds * options[ACCESSES].value;
    objects[count / 2][0] += options[CORRUPT].value;
    bool right = sum(objects, count, bytes / sizeof(uint64_t)) == accesses;
    for (uint64_t i = 0; i < count; i++) {
        free(objects[i]);
    }
    free(objects);
    return finish("hotcold", right, accesses, took);
}
