/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_asserts_alone.c: breaches of invariants are caught. Each child breaks one (the library has
 * no such call, so the sources are included) and must abort with a line that names the condition.
 */
#define ALLOC_HEAP_NO_MAIN
#include "alloc_heap.h"
#include <signal.h>
#include <sys/wait.h>

static struct run *some_run(void) {
    heap_lock(&tcl_heap_lock);
    struct run *run = tcl_pages_take(0, 4, 1, TAKE_ANY);
    heap_unlock(&tcl_heap_lock);
    return run;
}

static void gives_without_the_lock(void) {
    tcl_pages_give(some_run());
}

static void gives_twice(void) {
    struct run *run = some_run();
    heap_lock(&tcl_heap_lock);
    tcl_pages_give(run);
    tcl_pages_give(run);
}

static void claims_more_than_it_has(void) {
    struct run *run = some_run();
    heap_lock(&tcl_heap_lock);
    run->touched = run->total + 1;
    tcl_pages_give(run);
}

static void frees_beyond_the_heap(void) {
    heap_lock(&tcl_heap_lock);
    insert_free(page_number(next_runs), 1, RUN_CLEAN);
}

static void visit_nothing(struct run *run, void *context) {
    (void)run, (void)context;
}

static void walks_without_the_lock(void) {
    tcl_pages_each(visit_nothing, NULL);
}

static void returns_cached_runs_without_the_lock(void) {
    struct cache *some = open_cache();
    drain(some, &some->slots[0][0], 0);
}

static void claims_part_of_a_unit(void) {
    heap_lock(&tcl_heap_lock);
    claim_units(&next_runs, range_end(), 0, UNIT / 2);
}

static const struct {
    void (*breach)(void);
    const char *named;
} breaches[] = {
    {gives_without_the_lock, "tcl_is_held"},  {gives_twice, "is_used_run"},
    {claims_more_than_it_has, "is_used_run"}, {frees_beyond_the_heap, "next_runs"},
    {walks_without_the_lock, "tcl_is_held"},  {returns_cached_runs_without_the_lock, "tcl_is_held"},
    {claims_part_of_a_unit, "UNIT - 1"},
};

int main(void) {
    tcl_heap_init();
    for (size_t i = 0; i < sizeof(breaches) / sizeof(*breaches); i++) {
        int ends[2];
        if (pipe(ends))
            return 1;
        pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], 2);
            breaches[i].breach();
            _exit(0);
        }
        close(ends[1]);
        char text[512] = {0};
        ssize_t got = read(ends[0], text, sizeof(text) - 1);
        int status;
        waitpid(child, &status, 0);
        close(ends[0]);
        if (got <= 0 || !WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT ||
            !strstr(text, breaches[i].named)) {
            fprintf(stderr, "breach %zu: status %x, said: %s\n", i, status, text);
            return 1;
        }
    }
    puts("alloc_asserts: every breach aborts and is named");
    return 0;
}
