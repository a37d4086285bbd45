/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * track_threads.c: thousands of threads share few rings; records of threads without a ring are
 * counted, and their objects are still in the object table.
 */
#include "hazard.h"

#define CHURNED 3000                     /* several times TCL_RINGS_MAX */
#define CROWD ((int)TCL_RINGS_MAX + 100) /* more than there are rings */

static void *short_life(void *seed) {
    churn(20, (unsigned)(uintptr_t)seed);
    return malloc(8192);
}

static pthread_barrier_t all_there;

static void *crowd(void *unused) {
    (void)unused;
    pthread_barrier_wait(&all_there); /* all of them live at once */
    void *p = malloc(12345 * 8);
    pthread_barrier_wait(&all_there);
    return p;
}

static int hosted(const char *part) {
    await_greeting(); /* rings that fill before lose records */
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    if (!strcmp(part, "churned")) {
        pthread_t thread[8];
        for (uintptr_t i = 0; i < CHURNED; i++) {
            if (i >= 8) {
                void *p;
                pthread_join(thread[i % 8], &p);
                free(p); /* of another thread */
            }
            CHECK(!pthread_create(&thread[i % 8], &small, short_life, (void *)i), "thread");
        }
        for (int i = 0; i < 8; i++)
            pthread_join(thread[i], NULL);
        return 0;
    }
    static pthread_t thread[CROWD];
    pthread_barrier_init(&all_there, NULL, CROWD);
    for (int i = 0; i < CROWD; i++)
        CHECK(!pthread_create(&thread[i], &small, crowd, NULL), "thread %d", i);
    for (int i = 0; i < CROWD; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

static int crowd_objects;
static void count_crowd(struct session *s, const struct known_object *found) {
    (void)s;
    crowd_objects += found->bytes == (12345 * 8 + 4095) / 4096 * 4096;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return hosted(argv[1]);
    struct daemon churned = {0}, crowded = {0};
    host(&churned, "churned");
    struct session *s = churned.session[0];
    unsigned rings = header_of(s)->ring_high_water;
    CHECK(s->lost + s->without_ring == 0, "lost %lu %lu", s->lost, s->without_ring);
    CHECK(rings <= 32, "%u rings for at most 10 threads at a time", rings);
    host(&crowded, "crowded");
    s = crowded.session[0];
    CHECK(header_of(s)->ring_high_water == TCL_RINGS_MAX, "%u", header_of(s)->ring_high_water);
    CHECK(s->without_ring >= 90, "threads beyond the rings: %lu", s->without_ring);
    walk_table(s, count_crowd);
    CHECK(crowd_objects == CROWD, "%d objects of %d threads", crowd_objects, CROWD);
    printf("track_threads: %d threads in %u rings; %d at once, %lu records counted as lost\n",
           CHURNED, rings, CROWD, s->without_ring);
    close_daemon(&churned);
    close_daemon(&crowded);
    return 0;
}
