/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * phased: groups of objects take turns at being hot: the right placement changes with each phase.
 * In: sizes, phases. Out: one line; right when the objects account for every access.
 * Knows nothing of tiers.
 */
#include "workload.h"

enum { GROUPS, OBJECTS, OBJECT_KIB, PHASES, ACCESSES, SHOW, SEED, CORRUPT };

static struct option options[] = {
    [GROUPS] = {"groups", 4, "how many groups take turns"},
    [OBJECTS] = {"objects", 8, "objects a group"},
    [OBJECT_KIB] = {"kib", 4096, "KiB of each"},
    [PHASES] = {"phases", 8, "how many phases; phase p heats group p mod groups"},
    [ACCESSES] = {"accesses", 20000000, "accesses a phase; every tenth goes to any group"},
    [SHOW] = {"show", 0, "1: print each phase's hot ranges when it begins"},
    [SEED] = {"seed", 42, "of the accesses"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt a word, which the check must detect"},
};

static void phase(uint64_t **objects, uint64_t group, uint64_t *state) {
    uint64_t each = options[OBJECTS].value, words = (options[OBJECT_KIB].value << 10) / 8;
    for (uint64_t n = 0; n < options[ACCESSES].value; n++) {
        uint64_t which = n % 10 == 0 ? random_below(state, each * options[GROUPS].value)
                                     : group * each + random_below(state, each);
        objects[which][random_below(state, words)]++;
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t groups = options[GROUPS].value, each = options[OBJECTS].value;
    size_t bytes = options[OBJECT_KIB].value << 10;
    if (groups == 0 || each == 0 || bytes == 0) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t **objects = must_alloc(groups * each * sizeof *objects);
    for (uint64_t i = 0; i < groups * each; i++) {
        objects[i] = memset(must_alloc(bytes), 0, bytes);
    }
    uint64_t state = seeded(options[SEED].value, 0), start = region_begin();
    for (uint64_t p = 0; p < options[PHASES].value; p++) {
        for (uint64_t i = 0; options[SHOW].value && i < each; i++) {
            show_range("hot", objects[p % groups * each + i], bytes);
        }
        char name[32];
        snprintf(name, sizeof name, "group %" PRIu64, p % groups);
        enter_phase(name);
        phase(objects, p % groups, &state);
    }
    uint64_t took = region_end(start), total = 0;
    objects[groups * each / 2][0] += options[CORRUPT].value;
    for (uint64_t i = 0; i < groups * each; i++) {
        for (size_t w = 0; w < bytes / 8; w++) {
            total += objects[i][w];
        }
        free(objects[i]);
    }
    free(objects);
    uint64_t accesses = options[PHASES].value * options[ACCESSES].value;
    return finish("phased", total == accesses, accesses, took);
}
