/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * uneven.c: memory of which the first bytes of each 2 MiB are accessed, line by line, in turns.
 * In: how many times 2 MiB, KiB of each that are accessed, `huge` or `small` OS pages to begin
 * with, the control files of the kernel permitting. Out: `ready`; accesses until SIGTERM; `intact`
 * when every word is as it was written. Knows nothing of tiers.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_BYTES = 2 << 20, LINE_WORDS = 8, HUGE_WORDS = HUGE_BYTES / sizeof(uint64_t) };

static volatile sig_atomic_t is_over;

static void end(int signal) {
    (void)signal;
    is_over = 1;
}

/* Memory that begins where a huge OS page can. */
static volatile uint64_t *aligned(size_t bytes) {
    char *memory = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("uneven: mmap");
        exit(1);
    }
    return (void *)(((uintptr_t)memory + HUGE_BYTES - 1) & -(uintptr_t)HUGE_BYTES);
}

/* Adds 1 to a word of each line of the first bytes of all. */
static void access_all(volatile uint64_t *memory, size_t count, size_t hot_words) {
    for (size_t one = 0; one < count; one++) {
        for (size_t at = 0; at < hot_words; at += LINE_WORDS) {
            memory[one * HUGE_WORDS + at]++;
        }
    }
}

static int is_intact(volatile uint64_t *memory, size_t count, size_t hot_words, uint64_t rounds) {
    for (size_t word = 0; word < count * HUGE_WORDS; word++) {
        size_t at = word % HUGE_WORDS;
        uint64_t added = at < hot_words && at % LINE_WORDS == 0 ? rounds : 0;
        if (memory[word] != word + added) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: uneven COUNT HOT_KIB huge|small\n");
        return 2;
    }
    size_t count = strtoul(argv[1], NULL, 10);
    size_t hot_words = (strtoul(argv[2], NULL, 10) << 10) / sizeof(uint64_t);
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    volatile uint64_t *memory = aligned(count * HUGE_BYTES);
    if (strcmp(argv[3], "huge") == 0 &&
        madvise((void *)memory, count * HUGE_BYTES, MADV_HUGEPAGE) != 0) {
        perror("uneven: madvise");
        return 1;
    }
    for (size_t word = 0; word < count * HUGE_WORDS; word++) {
        memory[word] = word;
    }
    puts("ready");
    fflush(stdout);
    uint64_t rounds = 0;
    for (; !is_over; rounds++) {
        access_all(memory, count, hot_words);
    }
    int good = is_intact(memory, count, hot_words, rounds);
    puts(good ? "intact" : "corrupt");
    return !good;
}
