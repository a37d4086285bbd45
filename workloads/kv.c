/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * kv: a key-value store: a hash table with chains, an allocation for each item, values of 32 bytes
 * to 16 KiB, keys requested by Zipf's law as in YCSB.
 * In: size, mix, skew. Out: one line; right when every value, whenever it was read and at the end,
 * is what was last written for its key, and no write is missing.
 * Knows nothing of tiers: popular items are anywhere among the others; the bucket array is hotter
 * per byte than the items.
 */
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, OPERATIONS, SETS, SKEW, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [OPERATIONS] = {"operations", 2000000, "gets and sets"},
    [SETS] = {"sets", 5, "percent of sets; YCSB A has 50, B 5, C 0"},
    [SKEW] = {"skew", 99, "hundredths of Zipf's exponent, below 100; YCSB has 99"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of keys and operations"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt some values, which the check must detect"},
};

/* Steps of the table from quantiles to ranks; within a step all ranks are equally likely. Chosen,
 * not measured: 16 KiB, which stay in the cache. */
#define QUANTILES 4096
#define LOCKS 64 /* chosen, not measured: as many as there may be threads */
/* A mean item: header, value, a bucket, the allocator's 16. */
#define ITEM_BYTES 600

/* Values are words derived from key and version, so that each can be checked by itself. */
struct item {
    struct item *next;
    uint64_t key;
    uint32_t version;
    uint32_t words;
    uint64_t value[];
};

struct store {
    uint64_t keys;
    struct item **buckets;
    uint64_t bucket_count;
    /* The first rank of each quantile. */
    uint32_t ranks[QUANTILES + 1];
    pthread_mutex_t locks[LOCKS];
    uint64_t wrong[THREADS_MAX];
    uint64_t sets[THREADS_MAX];
};

SITE struct item *make_item(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE struct item **make_buckets(uint64_t bytes) {
    return must_alloc(bytes);
}

/* Of a hundred random values, 60 have 32 to 128 bytes, 30 up to 1 KiB, 9 up to 4 KiB and one up to
 * 16 KiB. */
static uint32_t words_of(uint64_t key, uint32_t version) {
    uint64_t state = seeded(key, version), chance = random_below(&state, 100);
    uint64_t least = chance < 60 ? 4 : chance < 90 ? 16 : chance < 99 ? 128 : 512;
    uint64_t most = chance < 60 ? 16 : chance < 90 ? 128 : chance < 99 ? 512 : 2048;
    return (uint32_t)(least + random_below(&state, most - least));
}

static uint64_t word_of(const struct item *item, uint32_t at) {
    return item->key * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)item->version << 32) + at;
}

static struct item *new_item(uint64_t key, uint32_t version) {
    uint32_t words = words_of(key, version);
    struct item *item = make_item(sizeof *item + words * sizeof(uint64_t));
    *item = (struct item){NULL, key, version, words};
    for (uint32_t i = 0; i < words; i++) {
        item->value[i] = word_of(item, i);
    }
    return item;
}

static void drop(struct item *item) {
    give_back(item, sizeof *item + item->words * sizeof(uint64_t));
}

static uint64_t bucket_of(const struct store *s, uint64_t key) {
    return (uint64_t)((__uint128_t)mix(key) * s->bucket_count >> 64);
}

/* The link of its chain that points to the item of `key`, or is NULL. */
static struct item **place_of(struct store *s, uint64_t key) {
    struct item **place = &s->buckets[bucket_of(s, key)];
    while (*place != NULL && (*place)->key != key) {
        place = &(*place)->next;
    }
    return place;
}

/* Copies the value, as a server would into its reply, and checks both ends of the copy. */
static bool get(struct store *s, uint64_t key, uint64_t *answer) {
    const struct item *item = *place_of(s, key);
    if (item == NULL) {
        return false;
    }
    uint32_t last = item->words - 1;
    memcpy(answer, item->value, item->words * sizeof(uint64_t));
    return answer[0] == word_of(item, 0) && answer[last] == word_of(item, last);
}

static bool set(struct store *s, uint64_t key) {
    struct item **place = place_of(s, key), *old = *place;
    if (old == NULL) {
        return false;
    }
    struct item *new = new_item(key, old->version + 1);
    new->next = old->next;
    *place = new;
    drop(old);
    return true;
}

/* Rank 0 is the most popular; ranks are assigned to keys at random. */
static uint64_t choose_key(const struct store *s, uint64_t *state) {
    uint64_t random = next_random(state), slot = random >> 52;
    uint64_t first = s->ranks[slot], count = s->ranks[slot + 1] - first;
    uint64_t rank = first + (count ? (random & UINT32_MAX) * count >> 32 : 0);
    return mix(rank + options[SEED].value) % s->keys;
}

/* The share of ranks below r is about (r/n)^(1-skew), the integral of Zipf's law. */
static void fill_ranks(struct store *s) {
    double exponent = 1.0 - (double)options[SKEW].value / 100.0;
    double all = (pow((double)s->keys + 1.0, exponent) - 1.0) / exponent;
    for (uint64_t q = 0; q <= QUANTILES; q++) {
        double share = all * (double)q / QUANTILES;
        double rank = pow(1.0 + share * exponent, 1.0 / exponent) - 1.0;
        s->ranks[q] = (uint32_t)fmin(rank, (double)s->keys);
    }
}

static void serve(struct member *member) {
    struct store *s = member->job;
    struct range mine = my_share(member, options[OPERATIONS].value);
    uint64_t state = seeded(options[SEED].value, 1 + member->me), answer[2048];
    uint64_t wrong = 0, sets = 0;
    for (uint64_t n = mine.begin; n < mine.end; n++) {
        uint64_t key = choose_key(s, &state);
        bool write = random_below(&state, 100) < options[SETS].value;
        pthread_mutex_t *lock = &s->locks[bucket_of(s, key) % LOCKS];
        if (member->of > 1) {
            pthread_mutex_lock(lock);
        }
        wrong += !(write ? set(s, key) : get(s, key, answer));
        sets += write;
        if (member->of > 1) {
            pthread_mutex_unlock(lock);
        }
    }
    s->wrong[member->me] = wrong;
    s->sets[member->me] = sets;
}

/* Items are allocated in the order of their keys, which is independent of their popularity. */
static void build(struct store *s) {
    s->buckets = make_buckets(s->bucket_count * sizeof *s->buckets);
    memset(s->buckets, 0, s->bucket_count * sizeof *s->buckets);
    for (uint64_t key = 0; key < s->keys; key++) {
        struct item *item = new_item(key, 0);
        struct item **bucket = &s->buckets[bucket_of(s, key)];
        item->next = *bucket;
        *bucket = item;
    }
    for (int i = 0; i < LOCKS; i++) {
        pthread_mutex_init(&s->locks[i], NULL);
    }
    fill_ranks(s);
}

/* Reads and frees all items; counts versions beyond the first, and wrong values. */
static uint64_t sweep(struct store *s, uint64_t *versions, uint64_t *digest) {
    uint64_t wrong = 0, seen = 0;
    for (uint64_t b = 0; b < s->bucket_count; b++) {
        for (struct item *item = s->buckets[b], *next; item != NULL; item = next) {
            wrong += item->words != words_of(item->key, item->version);
            for (uint32_t i = 0; i < item->words; i++) {
                wrong += item->value[i] != word_of(item, i);
            }
            *versions += item->version;
            *digest += mix(item->key) * (item->version + UINT64_C(1));
            seen++;
            next = item->next;
            drop(item);
        }
    }
    return wrong + (seen != s->keys);
}

static void spoil(struct store *s) {
    for (uint64_t key = 0; key < s->keys; key += 101) {
        (*place_of(s, key))->value[1] ^= 1;
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct store s;
    uint64_t threads = options[THREADS].value;
    s.keys = s.bucket_count = options[TOTAL_MIB].value * MIB / ITEM_BYTES;
    if (s.keys == 0 || s.keys > UINT32_MAX || options[SETS].value > 100 ||
        options[SKEW].value >= 100 || threads == 0 || threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    build(&s);
    uint64_t begun = region_begin();
    run_team(threads, serve, &s);
    uint64_t took = region_end(begun), wrong = 0, sets = 0, versions = 0, digest = 0;
    if (options[CORRUPT].value) {
        spoil(&s);
    }
    wrong = sweep(&s, &versions, &digest);
    for (uint64_t t = 0; t < threads; t++) {
        wrong += s.wrong[t];
        sets += s.sets[t];
    }
    give_back(s.buckets, s.bucket_count * sizeof *s.buckets);
    bool right = wrong == 0 && versions == sets;
    struct outcome out = {"kv", "operations", options[OPERATIONS].value, took, digest, right};
    return conclude(&out);
}
