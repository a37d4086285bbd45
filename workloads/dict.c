/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * dict: a dictionary of small objects: nodes in chains, a key and a record for each, made in turns,
 * so that what is hot and what is not lies side by side.
 * In: size, look-ups. Out: one line; right when every look-up finds its record, and the records
 * have counted them.
 * Knows nothing of tiers: nodes and keys are read by each look-up, records by one in `records`.
 */
#include "workload.h"

enum { TOTAL_MIB, LOOKUPS, RECORDS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 64, "MiB in total"},
    [LOOKUPS] = {"lookups", 2000000, "look-ups"},
    [RECORDS] = {"records", 16, "one look-up in so many reads the record"},
    [SEED] = {"seed", 1, "of keys and look-ups"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt a record, which the check must detect"},
};

#define KEY_BYTES 24    /* as an English word, a number and the end */
#define RECORD_WORDS 60 /* 480 bytes: a row that is seldom read */
/* Of an entry: a node, a key, a record, half a bucket, and what the allocator rounds up. */
#define ENTRY_BYTES (32 + 32 + 512 + 4)

struct record {
    uint64_t number, reads, words[RECORD_WORDS - 2];
};

struct node {
    struct node *next;
    char *key;
    struct record *record;
    uint64_t hash;
};

struct dict {
    struct node **buckets;
    uint64_t mask, count;
};

SITE struct node **make_buckets(size_t count) {
    return memset(must_alloc(count * sizeof(struct node *)), 0, count * sizeof(struct node *));
}
SITE struct node *make_node(void) {
    return must_alloc(sizeof(struct node));
}
SITE char *make_key(void) {
    return must_alloc(KEY_BYTES);
}
SITE struct record *make_record(void) {
    return must_alloc(sizeof(struct record));
}

static uint64_t spell(uint64_t number, char *key) {
    uint64_t scrambled = mix(number + options[SEED].value), hash = 0;
    snprintf(key, KEY_BYTES, "word-%016" PRIx64, scrambled);
    for (const char *c = key; *c; c++) {
        hash = hash * 31 + (unsigned char)*c;
    }
    return mix(hash);
}

static void insert(struct dict *dict, uint64_t number) {
    struct node *node = make_node();
    node->key = make_key();
    node->record = make_record();
    node->hash = spell(number, node->key);
    *node->record = (struct record){.number = number};
    struct node **bucket = &dict->buckets[node->hash & dict->mask];
    node->next = *bucket;
    *bucket = node;
    dict->count++;
}

static struct node *find(const struct dict *dict, const char *key, uint64_t hash) {
    struct node *node = dict->buckets[hash & dict->mask];
    while (node != NULL && (node->hash != hash || strcmp(node->key, key) != 0)) {
        node = node->next;
    }
    return node;
}

/* How many found what they looked for. */
static uint64_t look_up(const struct dict *dict, uint64_t *read) {
    uint64_t state = seeded(options[SEED].value, 1), found = 0;
    char key[KEY_BYTES];
    for (uint64_t n = 0; n < options[LOOKUPS].value; n++) {
        uint64_t number = random_below(&state, dict->count);
        uint64_t hash = spell(number, key);
        struct node *node = find(dict, key, hash);
        found += node != NULL;
        if (node != NULL && n % options[RECORDS].value == 0) {
            found -= node->record->number != number;
            node->record->reads++;
            ++*read;
        }
    }
    return found;
}

static uint64_t reads_of(const struct dict *dict) {
    uint64_t reads = 0;
    for (uint64_t b = 0; b <= dict->mask; b++) {
        for (const struct node *node = dict->buckets[b]; node != NULL; node = node->next) {
            reads += node->record->reads;
        }
    }
    return reads;
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t count = options[TOTAL_MIB].value * MIB / ENTRY_BYTES, buckets = 1;
    if (count < 2 || options[RECORDS].value == 0 || count >= UINT32_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    while (buckets < count / 2) {
        buckets *= 2;
    }
    struct dict dict = {.buckets = make_buckets(buckets), .mask = buckets - 1};
    for (uint64_t number = 0; number < count; number++) {
        insert(&dict, number);
    }
    uint64_t read = 0, start = region_begin();
    uint64_t found = look_up(&dict, &read);
    uint64_t took = region_end(start);
    char key[KEY_BYTES];
    uint64_t hash = spell(count / 2, key);
    find(&dict, key, hash)->record->reads += options[CORRUPT].value;
    uint64_t reads = reads_of(&dict);
    struct outcome out = {.name = "dict",
                          .unit = "lookups",
                          .operations = options[LOOKUPS].value,
                          .took_ns = took,
                          .digest = mix(found ^ reads),
                          .right = found == options[LOOKUPS].value && reads == read};
    return conclude(&out);
}
