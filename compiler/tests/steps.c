/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * steps.c: two arrays that are used in turns, a list that is walked, and names that are not read:
 * what a plan places by phases, and small objects among others of their temperature.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS (1u << 18) /* 2 MiB each: twice the cache of the test */
#define NODES 40000u     /* 2.5 MiB */
#define STEPS 4

struct node {
    struct node *next;
    uint64_t value[7];
};

__attribute__((noinline)) static uint64_t *make_first(void) {
    return calloc(WORDS, sizeof(uint64_t));
}
__attribute__((noinline)) static uint64_t *make_second(void) {
    return calloc(WORDS, sizeof(uint64_t));
}
__attribute__((noinline)) static struct node *make_node(void) {
    return malloc(sizeof(struct node));
}
__attribute__((noinline)) static char *make_name(void) {
    return malloc(64);
}

static struct node *make_list(void) {
    struct node *list = NULL;
    for (uint64_t i = 0; i < NODES; i++) {
        struct node *node = make_node();
        *node = (struct node){list, {i}};
        memset(make_name(), (int)i, 64);
        list = node;
    }
    return list;
}

__attribute__((noinline)) static uint64_t use_first(uint64_t *words) {
    uint64_t sum = 0;
    for (uint32_t n = 0, at = 0; n < 2 * WORDS; n++, at = (at + 4099) % WORDS)
        sum += words[at]++ * n;
    return sum;
}

__attribute__((noinline)) static uint64_t use_second(uint64_t *words, const struct node *list) {
    uint64_t sum = 0;
    for (uint32_t n = 0, at = 0; n < 2 * WORDS; n++, at = (at + 8209) % WORDS)
        sum += words[at]++ ^ n;
    for (int n = 0; n < 24; n++)
        for (const struct node *node = list; node; node = node->next)
            sum += node->value[0];
    return sum;
}

int main(void) {
    uint64_t *first = make_first(), *second = make_second(), sum = 0;
    struct node *list = make_list();
    for (int step = 0; step < STEPS; step++)
        sum = sum * 3 + use_first(first) + use_second(second, list);
    printf("%lu\n", sum);
    return 0;
}
