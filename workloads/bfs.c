/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * bfs: breadth-first searches of a skewed graph, after Graph500: an edge list is generated and kept
 * for the validation; the searches read offsets and neighbours (CSR).
 * In: size, roots. Out: one line; right when the last search's tree is a breadth-first tree of the
 * edge list and the others reached as many vertices.
 * Knows nothing of tiers: the edge list comes first and is cold, parents are hot and random,
 * neighbours warm by their vertex's degree.
 */
#include "graph.h"
#include "team.h"

enum { TOTAL_MIB, ROOTS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [ROOTS] = {"roots", 4, "searches, 64 at most, as Graph500's"},
    [THREADS] = {"threads", 1, "threads of the searches, 64 at most"},
    [SEED] = {"seed", 1, "of the graph and the roots"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the tree, which the check must detect"},
};

#define ROOTS_MAX 64 /* as many as a run of Graph500 has */
#define UNSEEN UINT32_MAX
/* Of an edge: itself, and both directions. Of a vertex: offset, parent, two queues, depth. */
#define EDGE_BYTES (8 + 2 * 4)
#define VERTEX_BYTES (8 + 4 + 4 + 4 + 4)
/* Graph500 has 16 edges for each vertex; this program half to twice as many, to meet the size. */
#define EDGE_FACTOR UINT64_C(16)
/* Vertices that a thread finds before it reserves space for them in the next queue. */
#define BATCH 256 /* chosen, not measured: one atomic addition for 1 KiB of vertices */

struct search {
    unsigned bits;
    uint64_t vertices, edges;
    struct edge *list;
    uint64_t *offsets;
    uint32_t *neighbours;
    _Atomic uint32_t *parents;
    uint32_t *queue, *next;
    uint64_t queue_length;
    _Atomic uint64_t next_length;
    uint32_t root;
    uint64_t reached;
    _Atomic uint64_t traversed;
};

SITE struct edge *make_edge_list(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_offsets(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_neighbours(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE void *make_parents(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_queue(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_depths(uint64_t bytes) {
    return must_alloc(bytes);
}

/* The graph without direction: each edge at both of its ends, loops dropped. */
static void build(struct search *s) {
    s->list = make_edge_list(s->edges * sizeof *s->list);
    s->offsets = make_offsets((s->vertices + 2) * sizeof *s->offsets);
    memset(s->offsets, 0, (s->vertices + 2) * sizeof *s->offsets);
    for (uint64_t i = 0; i < s->edges; i++) {
        struct edge edge = kronecker_edge(i, s->bits, options[SEED].value);
        s->list[i] = edge;
        if (edge.from != edge.to) {
            s->offsets[edge.from + 2]++;
            s->offsets[edge.to + 2]++;
        }
    }
    add_up(s->offsets + 1, s->vertices);
    s->neighbours = make_neighbours(2 * s->edges * sizeof *s->neighbours);
    for (uint64_t i = 0; i < s->edges; i++) {
        struct edge edge = s->list[i];
        if (edge.from != edge.to) {
            s->neighbours[s->offsets[edge.from + 1]++] = edge.to;
            s->neighbours[s->offsets[edge.to + 1]++] = edge.from;
        }
    }
    s->parents = make_parents(s->vertices * sizeof *s->parents);
    s->queue = make_queue(s->vertices * sizeof *s->queue);
    s->next = make_queue(s->vertices * sizeof *s->next);
}

static void hand_over(struct search *s, const uint32_t *batch, uint64_t count) {
    uint64_t at = atomic_fetch_add(&s->next_length, count);
    memcpy(s->next + at, batch, count * sizeof *batch);
}

/* One level's share: the unvisited neighbours of this thread's part of the queue. */
static void expand(struct member *member) {
    struct search *s = member->job;
    struct range mine = my_share(member, s->queue_length);
    uint32_t batch[BATCH];
    uint64_t count = 0, traversed = 0;
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        uint32_t vertex = s->queue[i];
        traversed += s->offsets[vertex + 1] - s->offsets[vertex];
        for (uint64_t k = s->offsets[vertex]; k < s->offsets[vertex + 1]; k++) {
            _Atomic uint32_t *parent = &s->parents[s->neighbours[k]];
            uint32_t unseen = UNSEEN;
            if (atomic_load_explicit(parent, memory_order_relaxed) != UNSEEN ||
                !atomic_compare_exchange_strong(parent, &unseen, vertex)) {
                continue;
            }
            batch[count++] = s->neighbours[k];
            if (count == BATCH) {
                hand_over(s, batch, count);
                count = 0;
            }
        }
    }
    hand_over(s, batch, count);
    atomic_fetch_add(&s->traversed, traversed);
}

static void search_share(struct member *member) {
    struct search *s = member->job;
    struct range mine = my_share(member, s->vertices);
    for (uint64_t v = mine.begin; v < mine.end; v++) {
        atomic_store_explicit(&s->parents[v], UNSEEN, memory_order_relaxed);
    }
    wait_for_all(member);
    if (member->me == 0) {
        s->parents[s->root] = s->root;
        s->queue[0] = s->root;
        s->queue_length = s->reached = 1;
    }
    wait_for_all(member);
    while (s->queue_length > 0) {
        expand(member);
        wait_for_all(member);
        if (member->me == 0) {
            uint32_t *done = s->queue;
            s->queue = s->next;
            s->next = done;
            s->queue_length = atomic_exchange(&s->next_length, 0);
            s->reached += s->queue_length;
        }
        wait_for_all(member);
    }
}

/* The distance of each vertex from the root by its chain of parents; `vertices` if the chain does
 * not reach the root, UNSEEN without a parent. `chain` has room for all. */
static void fill_depths(const struct search *s, uint32_t *depths, uint32_t *chain) {
    memset(depths, 0xff, s->vertices * sizeof *depths);
    depths[s->root] = 0;
    for (uint32_t v = 0; v < s->vertices; v++) {
        uint64_t length = 0;
        uint32_t at = v;
        while (depths[at] == UNSEEN && s->parents[at] < s->vertices && length < s->vertices) {
            chain[length++] = at;
            at = s->parents[at];
        }
        uint32_t depth = depths[at] == UNSEEN ? (uint32_t)s->vertices : depths[at];
        while (length-- > 0) {
            depth += depth < s->vertices;
            depths[chain[length]] = depth;
        }
    }
}

/* Graph500's rules: ends of an edge are both reached or both not, at depths at most one apart; and
 * each parent is one by an edge of the list. */
static bool tree_is_right(struct search *s, uint64_t *digest) {
    uint32_t *depths = make_depths(s->vertices * sizeof *depths);
    fill_depths(s, depths, s->queue);
    bool right = true;
    for (uint32_t v = 0; v < s->vertices; v++) {
        s->next[v] = depths[v] != UNSEEN && v != s->root;
        right &= depths[v] == UNSEEN || depths[v] < s->vertices;
        *digest += mix((uint64_t)depths[v] << 32 | v);
    }
    for (uint64_t i = 0; i < s->edges; i++) {
        uint32_t a = s->list[i].from, b = s->list[i].to;
        if (depths[a] == UNSEEN || depths[b] == UNSEEN) {
            right &= depths[a] == depths[b];
            continue;
        }
        int64_t apart = (int64_t)depths[a] - (int64_t)depths[b];
        right &= apart >= -1 && apart <= 1;
        if (a != b) {
            s->next[a] &= s->parents[a] != b || apart != 1;
            s->next[b] &= s->parents[b] != a || apart != -1;
        }
    }
    for (uint64_t v = 0; v < s->vertices; v++) {
        right &= s->next[v] == 0;
    }
    give_back(depths, s->vertices * sizeof *depths);
    return right;
}

/* The root has neighbours. All but a few such vertices are in one component, whose size every
 * search from it must reach. */
static uint32_t choose_root(const struct search *s, uint64_t *state) {
    for (;;) {
        uint64_t root = random_below(state, s->vertices);
        if (s->offsets[root + 1] > s->offsets[root]) {
            return (uint32_t)root;
        }
    }
}

static void tear_down(struct search *s) {
    give_back(s->next, s->vertices * sizeof *s->next);
    give_back(s->queue, s->vertices * sizeof *s->queue);
    give_back((void *)s->parents, s->vertices * sizeof *s->parents);
    give_back(s->neighbours, 2 * s->edges * sizeof *s->neighbours);
    give_back(s->offsets, (s->vertices + 2) * sizeof *s->offsets);
    give_back(s->list, s->edges * sizeof *s->list);
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct search s;
    uint64_t threads = options[THREADS].value, bytes = options[TOTAL_MIB].value * MIB;
    uint64_t roots = options[ROOTS].value;
    while ((VERTEX_BYTES + EDGE_FACTOR * EDGE_BYTES) << (s.bits + 1) <= bytes * 3 / 2) {
        s.bits++;
    }
    s.vertices = UINT64_C(1) << s.bits;
    s.edges =
        bytes > s.vertices * VERTEX_BYTES ? (bytes - s.vertices * VERTEX_BYTES) / EDGE_BYTES : 0;
    if (s.bits < 4 || s.bits > 31 || s.edges == 0 || roots == 0 || roots > ROOTS_MAX ||
        threads == 0 || threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    fill_level_bits();
    build(&s);
    uint64_t state = seeded(options[SEED].value, UINT64_MAX), reached[ROOTS_MAX], digest = 0;
    uint32_t starts[ROOTS_MAX];
    for (uint64_t r = 0; r < roots; r++) {
        starts[r] = choose_root(&s, &state);
    }
    uint64_t begun = region_begin();
    for (uint64_t r = 0; r < roots; r++) {
        s.root = starts[r];
        run_team(threads, search_share, &s);
        reached[r] = s.reached;
    }
    uint64_t took = region_end(begun);
    for (uint64_t v = 0; options[CORRUPT].value && v < s.vertices; v += 4099) {
        s.parents[v] = (uint32_t)((v + 1) % s.vertices);
    }
    bool right = tree_is_right(&s, &digest);
    for (uint64_t r = 0; r < roots; r++) {
        /* A root in the last tree is in the same component, so its search reached as much. */
        right &= s.parents[starts[r]] == UNSEEN || reached[r] == s.reached;
        digest += mix(reached[r]);
    }
    struct outcome out = {"bfs", "edges", s.traversed, took, digest, right};
    tear_down(&s);
    return conclude(&out);
}
