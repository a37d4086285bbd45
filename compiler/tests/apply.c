/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * apply.c: what compiled code asks of the runtime where a plan was applied to it. Plays the runtime
 * itself. In: `0` where the code was compiled without optimisation, `full` where the linker
 * optimised it, which marks a loop that was unrolled several times. Out: 0 when all hold.
 */
#include "apply.h"
#include "../../include/tiercel_probe.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s; entered:%s\n", __FILE__, __LINE__, #condition, entered);   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

extern void _ZdlPv(void *);

static char entered[4000]; /* names of marks, as they were entered and left */
static struct tiercel_probe_mark *inside;
static unsigned asked;
static uint32_t last_what;
static size_t last_bytes;
#define IN_STEPS " steps steps / steps / steps / /"
static bool is_repeated; /* loops may be marked several times */
static bool is_there = true, releases_well = true;

struct tiercel_probe_mark *tiercel_probe_enter(struct tiercel_probe_mark *mark) {
    struct tiercel_probe_mark *before = inside;
    CHECK(mark->is_planned && !mark->is_off && !mark->phase && !mark->entries);
    inside = mark;
    strcat(strcat(entered, " "), mark->name);
    return before;
}

void tiercel_probe_exit(struct tiercel_probe_mark *mark, struct tiercel_probe_mark *before) {
    CHECK(inside == mark);
    inside = before;
    strcat(entered, " /");
}

void *tiercel_probe_small(size_t bytes, uint32_t what, void (*release)(void *)) {
    asked++;
    last_what = what;
    last_bytes = bytes;
    releases_well &= release == free || release == _ZdlPv;
    void *p = is_there && bytes < 4096 ? malloc(bytes) : NULL;
    if (p)
        memset(p, what & TIERCEL_PROBE_ZEROED ? 0 : 7, bytes);
    return p;
}

/* Whether the birth asked, and for what; its object works. */
static bool asks(void *(*born)(size_t), size_t bytes, uint32_t what) {
    unsigned before = asked;
    char *p = born(bytes);
    CHECK(p);
    memset(p, 1, bytes);
    free(p);
    return asked == before + 1 && last_what == what && last_bytes == bytes;
}

static void check_births(bool is_optimised) {
    const uint32_t hot = 1, cold = 2;
    CHECK(asks(born_hot, 100, hot) && asks(born_cold, 100, cold | TIERCEL_PROBE_ZEROED));
    CHECK(asks(born_hot, 5000, hot) && asks(born_hot, 0, hot));
    unsigned before = asked;
    CHECK(!asks(born_plain, 100, hot) && asked == before);
    CHECK(asks(born_wrapped_hot, 100, hot) == is_optimised);
    CHECK(asks(born_wrapped_cold, 100, cold) == is_optimised);
    char *zeroed = born_cold(64);
    for (int i = 0; i < 64; i++)
        CHECK(!zeroed[i]);
    free(zeroed);
}

static void check_new(void) {
    unsigned before = asked;
    int ends = 0;
    for (int there = 0; there < 2; there++) {
        is_there = there;
        void *hot = new_hot(), *cold = new_cold(), *guarded = new_beside_cleanup(&ends);
        CHECK(hot && cold && guarded && last_what == 1);
        CHECK(!((char *)guarded)[0] && !((char *)guarded)[39]);
        unnew(hot);
        unnew(cold);
        unnew(guarded);
    }
    CHECK(asked == before + 6 && ends == 2);
}

/* Removes ` text` where it follows itself. */
static void unrepeat(char *names, const char *text) {
    char twice[100];
    snprintf(twice, sizeof(twice), "%s%s", text, text);
    for (char *at; (at = strstr(names, twice));)
        memmove(at, at + strlen(text), strlen(at + strlen(text)) + 1);
}

/* Lines after a colon differ; the rest must be this. */
static bool was(const char *wanted) {
    char names[sizeof(entered)] = "";
    for (char *word = strtok(entered, " "); word; word = strtok(NULL, " ")) {
        strcat(names, " ");
        strncat(names, word, strcspn(word, ":"));
    }
    if (is_repeated) {
        unrepeat(names, " planned /");
        unrepeat(names, " steps /");
        wanted = strcmp(wanted, IN_STEPS) ? wanted : " steps steps / /";
    }
    strcpy(entered, names);
    bool is = !strcmp(names, wanted) && !inside;
    if (is)
        *entered = 0;
    return is;
}

static void check_marks(void) {
    long numbers[50];
    for (int i = 0; i < 50; i++)
        numbers[i] = i;
    CHECK(unplanned(numbers, 50) && was(""));
    CHECK(planned(numbers, 50) && was(" planned /"));
    CHECK(steps(numbers, 50) && was(IN_STEPS));
    CHECK(thrown(5) == 5 && was(" thrown /"));
}

int main(int argc, char **argv) {
    is_repeated = argc > 1 && *argv[1] == 'f';
    check_births(argc < 2 || *argv[1] != '0');
    check_new();
    check_marks();
    CHECK(releases_well);
    puts("apply: births and loops of a plan");
    return 0;
}
