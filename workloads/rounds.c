/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * rounds: large objects that are born and die all the time beside one that stays, in five kinds.
 * In: the kind, its size, rounds. Out: one line; right when the sum of all that was read agrees
 * with the formula that all of it was made from.
 * Knows nothing of tiers: what is born in each round is hot, and seldom in fast memory by chance.
 *
 *   kind=0  graph        1 to 2 MiB of values anew in each round, gathered along 29 MiB of edges,
 *                        which were built from a list that is freed
 *   kind=1  squeeze      a structure with gaps is copied into one without, and freed
 *   kind=2  vectors      eight vectors grow in turns, each by a copy of twice its size
 *   kind=3  resized      the same by realloc, by a half each time
 *   kind=4  temporaries  one to four large temporaries in each round, each of another size
 */
#include "workload.h"

enum { KIND, TOTAL_MIB, ROUNDS, SEED, CORRUPT };

static struct option options[] = {
    [KIND] = {"kind", 0, "0 graph, 1 squeeze, 2 vectors, 3 resized, 4 temporaries"},
    [TOTAL_MIB] = {"mib", 40, "MiB in total"},
    [ROUNDS] = {"rounds", 8, "rounds"},
    [SEED] = {"seed", 1, "of the data"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt what stays, which the check must detect"},
};

enum { GRAPH, SQUEEZE, GROWING, RESIZED, TEMPORARIES };

#define MIB_MIN 4       /* chosen: each of the objects has some OS pages */
#define KEPT 1          /* number of the object that stays */
#define VALUES_SHARE 16 /* a round's values have this share of the edges' bytes */
#define VECTORS 8
#define TEMPORARIES_MAX 4
/* The least a vector begins with: small enough that it grows a dozen times. */
#define VECTOR_FIRST (UINT64_C(4) << 10)

/* What a word of an object holds: a hash of the object's number and the word's. */
static uint64_t value_of(uint64_t object, uint64_t word) {
    return mix(options[SEED].value << 56 ^ object << 40 ^ word);
}

/* The object that stays, and sums of what was read and of what should have been. */
struct state {
    uint32_t *edges;
    uint64_t *kept, kept_words;
    uint64_t *values; /* of the last round */
    uint64_t vertices, edge_count;
    uint64_t read, expected, operations, digest;
    uint64_t random;
};

SITE uint32_t *make_edges(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_edge_list(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_values(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_degrees(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_loose(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_squeezed(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_vector(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_temporary(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_kept(uint64_t bytes) {
    return must_alloc(bytes);
}

static void fill(uint64_t *words, uint64_t count, uint64_t object) {
    for (uint64_t i = 0; i < count; i++) {
        words[i] = value_of(object, i);
    }
}

/* Reads words at random; every 16th is compared with the formula through the sums. */
static void gather(struct state *s, const uint64_t *words, uint64_t count, uint64_t object,
                   uint64_t reads) {
    uint64_t random = seeded(options[SEED].value, object), all = 0;
    for (uint64_t i = 0; i < reads; i++) {
        uint64_t word = random_below(&random, count), value = words[word];
        all += value;
        if (i % 16 == 0) {
            s->read += value;
            s->expected += value_of(object, word);
        }
    }
    s->digest += mix(all);
    s->operations += reads;
}

/* ---- The graph ------------------------------------------------------------------------------- */

static uint32_t edge_of(struct state *s) {
    return (uint32_t)random_below(&s->random, s->vertices);
}

static void prepare_graph(struct state *s) {
    uint64_t bytes = options[TOTAL_MIB].value * MIB / 40 * 29;
    s->edge_count = bytes / sizeof *s->edges;
    s->vertices = bytes / VALUES_SHARE / sizeof *s->values;
    /* A quarter of them comes from a list that is freed when the graph is built. */
    uint64_t listed = s->edge_count / 4, list_bytes = listed * sizeof *s->edges;
    uint32_t *list = make_edge_list(list_bytes);
    s->random = seeded(options[SEED].value, 0);
    for (uint64_t i = 0; i < listed; i++) {
        list[i] = edge_of(s);
    }
    s->edges = make_edges(bytes);
    for (uint64_t i = 0; i < s->edge_count; i++) {
        s->edges[i] = i < listed ? list[i] : edge_of(s);
    }
    give_back(list, list_bytes);
    s->values = make_values(s->vertices * sizeof *s->values);
    fill(s->values, s->vertices, KEPT);
}

/* Each vertex adds up what its neighbours had in the round before. The sum over all vertices is
 * that of all values, each as often as an edge leads to it. */
static void round_of_graph(struct state *s, uint64_t round) {
    uint64_t value_bytes = s->vertices * sizeof *s->values, each = s->edge_count / s->vertices;
    uint64_t degree_bytes = s->vertices * sizeof(uint32_t);
    uint64_t *next = make_values(value_bytes);
    uint32_t *degrees = make_degrees(degree_bytes);
    memset(degrees, 0, degree_bytes);
    for (uint64_t v = 0; v < s->vertices; v++) {
        uint64_t sum = 0;
        for (uint64_t k = v * each; k < (v + 1) * each; k++) {
            sum += s->values[s->edges[k]];
            degrees[s->edges[k]]++;
        }
        next[v] = sum;
    }
    for (uint64_t v = 0; v < s->vertices; v++) {
        s->read += next[v];
        s->expected += s->values[v] * degrees[v];
    }
    give_back(degrees, degree_bytes);
    give_back(s->values, value_bytes);
    s->values = next;
    s->operations += s->vertices * each;
    s->digest = mix(s->digest ^ s->read ^ round);
}

/* The edges as they were made, once more. */
static bool edges_are_right(struct state *s) {
    bool right = true;
    s->random = seeded(options[SEED].value, 0);
    for (uint64_t i = 0; i < s->edge_count; i++) {
        right &= s->edges[i] == edge_of(s);
    }
    return right;
}

/* ---- Other kinds ----------------------------------------------------------------------------- */

static void prepare_kept(struct state *s) {
    /* Of the memory: a fifth, a quarter or a half. */
    uint64_t parts = options[KIND].value == SQUEEZE       ? 5
                     : options[KIND].value == TEMPORARIES ? 2
                                                          : 4;
    s->kept_words = options[TOTAL_MIB].value * MIB / sizeof *s->kept / parts;
    s->kept = make_kept(s->kept_words * sizeof *s->kept);
    fill(s->kept, s->kept_words, KEPT);
    s->random = seeded(options[SEED].value, 1);
}

/* Three of four words are gaps. The squeezed structure is what the rest of the round reads. */
static void round_of_squeeze(struct state *s, uint64_t round) {
    uint64_t words = s->kept_words / 2, loose_bytes = 4 * words * 8, object = KEPT + 1 + round;
    uint64_t *loose = make_loose(loose_bytes);
    memset(loose, 0, loose_bytes);
    for (uint64_t i = 0; i < words; i++) {
        loose[4 * i] = value_of(object, i);
    }
    uint64_t *squeezed = make_squeezed(words * 8);
    for (uint64_t i = 0; i < words; i++) {
        squeezed[i] = loose[4 * i];
    }
    give_back(loose, loose_bytes);
    gather(s, squeezed, words, object, words * 2);
    gather(s, s->kept, s->kept_words, KEPT, words / 4);
    give_back(squeezed, words * 8);
}

struct vector {
    uint64_t *words, count, room;
};

static void grow(struct vector *vector) {
    bool resizes = options[KIND].value == RESIZED;
    uint64_t room = resizes ? vector->room / 2 * 3 : vector->room * 2;
    if (resizes) {
        uint64_t more = (room - vector->room) * 8;
        vector->words = must_have(realloc(vector->words, room * 8), more);
    } else {
        uint64_t *words = make_vector(room * 8);
        memcpy(words, vector->words, vector->count * 8);
        give_back(vector->words, vector->room * 8);
        vector->words = words;
    }
    vector->room = room;
}

static void append(struct vector *vector, uint64_t object) {
    if (vector->count == vector->room) {
        grow(vector);
    }
    vector->words[vector->count] = value_of(object, vector->count);
    vector->count++;
}

/* Vectors grow in turns, to 1, 2, .. 8 thirty-sixths of a third of the memory, and are then read.
 */
static void round_of_vectors(struct state *s, uint64_t round) {
    uint64_t part = options[TOTAL_MIB].value * MIB / 3 / 8 / (VECTORS * (VECTORS + 1) / 2);
    uint64_t object = KEPT + 1 + round * VECTORS;
    struct vector vectors[VECTORS];
    for (uint64_t v = 0; v < VECTORS; v++) {
        vectors[v] = (struct vector){make_vector(VECTOR_FIRST), 0, VECTOR_FIRST / 8};
    }
    for (uint64_t i = 0; i < part * VECTORS; i++) {
        for (uint64_t v = i / part; v < VECTORS; v++) {
            append(&vectors[v], object + v);
        }
    }
    for (uint64_t v = 0; v < VECTORS; v++) {
        gather(s, vectors[v].words, vectors[v].count, object + v, vectors[v].count / 2);
        give_back(vectors[v].words, vectors[v].room * 8);
    }
    gather(s, s->kept, s->kept_words, KEPT, part * VECTORS / 2);
}

/* Temporaries of a sixteenth to an eighth of the memory, up to four at once. */
static void round_of_temporaries(struct state *s, uint64_t round) {
    uint64_t *temporaries[TEMPORARIES_MAX], words[TEMPORARIES_MAX];
    uint64_t count = 1 + random_below(&s->random, TEMPORARIES_MAX);
    uint64_t object = KEPT + 1 + round * TEMPORARIES_MAX;
    for (uint64_t t = 0; t < count; t++) {
        words[t] = s->kept_words / 8 + random_below(&s->random, s->kept_words / 8);
        temporaries[t] = make_temporary(words[t] * 8);
        fill(temporaries[t], words[t], object + t);
    }
    for (uint64_t t = 0; t < count; t++) {
        gather(s, temporaries[t], words[t], object + t, words[t]);
        give_back(temporaries[t], words[t] * 8);
    }
    gather(s, s->kept, s->kept_words, KEPT, s->kept_words / 4);
}

static void spoil(struct state *s) {
    for (uint64_t i = 0; i < s->kept_words; i++) {
        s->kept[i] ^= 1;
    }
    for (uint64_t i = 0; i < s->edge_count; i += 101) {
        s->edges[i] = (uint32_t)((s->edges[i] + 1) % s->vertices);
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static void (*const round_of[])(struct state *, uint64_t) = {
        [GRAPH] = round_of_graph,
        [SQUEEZE] = round_of_squeeze,
        [GROWING] = round_of_vectors,
        [RESIZED] = round_of_vectors,
        [TEMPORARIES] = round_of_temporaries,
    };
    uint64_t kind = options[KIND].value;
    if (kind >= sizeof round_of / sizeof *round_of || options[TOTAL_MIB].value < MIB_MIN) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    static struct state s;
    kind == GRAPH ? prepare_graph(&s) : prepare_kept(&s);
    if (options[CORRUPT].value) {
        spoil(&s);
    }
    uint64_t begun = region_begin();
    for (uint64_t round = 0; round < options[ROUNDS].value; round++) {
        round_of[kind](&s, round);
    }
    uint64_t took = region_end(begun);
    bool right = s.read == s.expected && edges_are_right(&s);
    struct outcome out = {"rounds", "reads", s.operations, took, s.digest, right};
    return conclude(&out);
}
