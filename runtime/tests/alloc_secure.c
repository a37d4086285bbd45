/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * alloc_secure.c: frees that glibc stops end the program, where TIERCEL_SECURE_HEAP is set.
 * In: the preload; the name of a defect in a program that is started again. Out: a line. Knows
 * nothing of how they are found.
 */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void twice(void) {
    char *p = malloc(40);
    free(p);
    free(p);
}
static void twice_with_others_between(void) {
    char *p = malloc(300), *q[50];
    for (int i = 0; i < 50; i++)
        q[i] = malloc(300);
    free(p);
    for (int i = 0; i < 50; i++)
        free(q[i]);
    free(p);
}
static void twice_buffer(void) {
    char *p = malloc(4368);
    free(p);
    free(p);
}
static void interior(void) {
    char *p = malloc(400);
    free(p + 64);
}
static void unaligned(void) {
    char *p = malloc(40);
    free(p + 1);
}
static void of_a_dead_block(void) {
    enum { COUNT = 4000, BYTES = 1000 };
    static char *objects[COUNT];
    for (int i = 0; i < COUNT; i++)
        objects[i] = malloc(BYTES);
    for (int i = 0; i < COUNT; i++)
        free(objects[i]);
    malloc_trim(0);
    free(objects[COUNT / 2]);
}
static void large_twice(void) {
    char *p = malloc(1 << 20);
    free(p);
    free(p);
}
static void large_interior(void) {
    char *p = malloc(1 << 20);
    free(p + 8192);
}
static void aligned_twice(void) {
    void *p = memalign(64, 100);
    free(p);
    free(p);
}

/* Nothing of this is a defect: slots with the mark of a free one, and other threads' slots. */
static char *given[1000];
static void *fill(void *unused) {
    for (int i = 0; i < 1000; i++)
        given[i] = malloc(16 + (size_t)i);
    return unused;
}
static void innocent(void) {
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, fill, NULL) == 0 && pthread_join(thread, NULL) == 0);
        for (int i = 0; i < 1000; i++) {
            given[i] = realloc(given[i], 20 + (size_t)i * 2);
            void *aligned = memalign((size_t)16 << i % 6, 100);
            CHECK((uintptr_t)aligned % (16u << i % 6) == 0);
            free(aligned);
            free(calloc(1, 500));
        }
        for (int i = 0; i < 1000; i++)
            free(given[i]);
    }
    char *zeroed = calloc(100, 16);
    for (int i = 0; i < 1600; i++)
        CHECK(zeroed[i] == 0);
    free(zeroed);
}

static const struct {
    const char *name;
    void (*run)(void);
    int signal;
} programs[] = {
    {"twice", twice, SIGABRT},
    {"twice-between", twice_with_others_between, SIGABRT},
    {"twice-buffer", twice_buffer, SIGABRT},
    {"interior", interior, SIGABRT},
    {"unaligned", unaligned, SIGABRT},
    {"dead-block", of_a_dead_block, SIGABRT},
    {"large-twice", large_twice, SIGABRT},
    {"large-interior", large_interior, SIGABRT},
    {"aligned-twice", aligned_twice, SIGABRT},
    {"innocent", innocent, 0},
};
#define PROGRAMS (sizeof programs / sizeof *programs)

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < PROGRAMS; i++)
        if (strcmp(argv[1], programs[i].name) == 0) {
            programs[i].run();
            return 0;
        }
    setenv("TIERCEL_SECURE_HEAP", "1", 1);
    for (size_t i = 0; i < PROGRAMS; i++) {
        char *words[] = {argv[0], (char *)programs[i].name, NULL}, text[200] = "";
        int status, ends[2];
        pid_t child;
        posix_spawn_file_actions_t actions;
        CHECK(pipe(ends) == 0 && posix_spawn_file_actions_init(&actions) == 0);
        posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
        CHECK(posix_spawn(&child, argv[0], &actions, NULL, words, environ) == 0);
        close(ends[1]);
        CHECK(waitpid(child, &status, 0) == child && read(ends[0], text, sizeof text - 1) >= 0);
        close(ends[0]);
        int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        CHECK(signal == programs[i].signal, "%s: status %x, %s", programs[i].name, status, text);
        CHECK(!signal || strncmp(text, "free(): ", 8) == 0, "%s: %s", programs[i].name, text);
    }
    printf("alloc_secure: invalid frees end a program, and nothing else does\n");
    return 0;
}
