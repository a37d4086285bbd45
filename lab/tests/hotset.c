// A program with a few hot objects among many cold ones; the hot ones are allocated last.
// In: counts and sizes, how long each object waits until it is touched. Out: `object INDEX ADDRESS
// BYTES hot|cold` for each, `ready`; after SIGTERM or the given time `intact` or `damaged ...`.
// Knows nothing of nodes.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_PER_LINE = 8, STEPS_PER_CLOCK = 4096 };

static volatile sig_atomic_t stopped;

static void stop(int number) {
    (void)number;
    stopped = 1;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t content(size_t object, size_t word) {
    return (uint64_t)object * 0x9e3779b97f4a7c15ull + word;
}

static uint64_t *allocate(size_t object, size_t bytes, int hot, unsigned pause_ms) {
    uint64_t *words = malloc(bytes);
    if (words == NULL) {
        fprintf(stderr, "hotset: no memory for object %zu\n", object);
        exit(1);
    }
    usleep(pause_ms * 1000);
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        words[i] = content(object, i);
    }
    printf("object %zu %p %zu %s\n", object, (void *)words, bytes, hot ? "hot" : "cold");
    return words;
}

// Reads and writes random cache lines of the hot objects; what is written is what was there.
static void work(uint64_t **objects, size_t first_hot, size_t count, size_t bytes, double seconds) {
    const size_t lines = bytes / sizeof(uint64_t) / WORDS_PER_LINE;
    uint64_t state = 88172645463325252ull;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int i = 0; i < STEPS_PER_CLOCK; i++) {
            const uint64_t random = next_random(&state);
            const size_t object = first_hot + (size_t)(random % (count - first_hot));
            volatile uint64_t *word = &objects[object][(random >> 20) % lines * WORDS_PER_LINE];
            *word = *word;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (!stopped && (double)(now.tv_sec - begin.tv_sec) < seconds);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: hotset OBJECTS HOT KIB_PER_OBJECT SECONDS [PAUSE_MS]\n");
        return 2;
    }
    const size_t count = strtoul(argv[1], NULL, 0), hot = strtoul(argv[2], NULL, 0);
    const size_t bytes = strtoul(argv[3], NULL, 0) << 10;
    if (hot == 0 || hot > count || bytes < 4096) {
        fprintf(stderr, "hotset: at least one hot object and 4 KiB are needed\n");
        return 2;
    }
    signal(SIGTERM, stop);
    uint64_t **objects = calloc(count, sizeof *objects);
    for (size_t i = 0; i < count; i++) {
        objects[i] = allocate(i, bytes, i >= count - hot, argc == 6 ? (unsigned)atoi(argv[5]) : 0);
    }
    puts("ready");
    fflush(stdout);
    work(objects, count - hot, count, bytes, atof(argv[4]));
    for (size_t i = 0; i < count; i++) {
        for (size_t word = 0; word < bytes / sizeof(uint64_t); word++) {
            if (objects[i][word] != content(i, word)) {
                printf("damaged object %zu word %zu\n", i, word);
                return 1;
            }
        }
    }
    puts("intact");
    return 0;
}
