/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * pagerank: ranks of a skewed graph's vertices by pulling, after GAP: each vertex adds up what its
 * in-neighbours contribute.
 * In: size, iterations, perhaps a file for the graph. Out: one line; right when the ranks add up to
 * one and the last iteration's are what pushing along the edges, when they were made, would have
 * given.
 * Knows nothing of tiers: the neighbours are streamed and most of the memory; contributions are
 * gathered at random, a few of them very often. A graph that is read from a file leaves as much
 * again in the page cache, as GraphMat's input does.
 */
#include "graph.h"
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, ITERATIONS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [ITERATIONS] = {"iterations", 10, "iterations"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of the graph"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt neighbours, which the check must detect"},
};

enum { GRAPH_FILE };

static struct text_option texts[] = {
    [GRAPH_FILE] = {"file", "", "the graph's file, made when it is not there; none: no file"},
};

#define DAMPING 0.85             /* Brin and Page 1998, 2.1.1 */
#define EDGE_FACTOR UINT64_C(16) /* Graph500's edges to a vertex */
/* For each vertex: offset, out-degree and weights, rank, new rank, contribution. */
#define VERTEX_BYTES (8 + 8 + 3 * 8)
#define EDGE_BYTES 4

/* A vertex's out-neighbours: how many, and for the check their weights together. */
struct out {
    uint32_t degree;
    uint32_t weights;
};

struct ranking {
    unsigned bits;
    uint64_t vertices, edges;
    uint64_t *offsets;
    uint32_t *neighbours;
    struct out *out;
    /* At the end, new_ranks are the ranks before the last iteration. */
    double *ranks, *new_ranks, *contributions;
    /* Sum over all vertices of the changes in the last iteration. */
    double change;
};

SITE uint64_t *make_offsets(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_neighbours(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE struct out *make_out_degrees(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_ranks(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_contributions(uint64_t bytes) {
    return must_alloc(bytes);
}

/* A vertex's random weight in the check, below 256. */
static uint32_t weight_of(uint64_t vertex) {
    return (uint32_t)(mix(vertex + options[SEED].value) >> 56);
}

/* How many edges go to each vertex: its share, rounded at random. Returns the total. */
static uint64_t fill_offsets(struct ranking *r, uint64_t edges) {
    r->offsets[0] = 0;
    for (uint64_t v = 0; v < r->vertices; v++) {
        uint64_t state = seeded(options[SEED].value, v);
        double share = share_to(unscramble((uint32_t)v, r->bits), r->bits);
        uint64_t degree = (uint64_t)(share * (double)edges + random_unit(&state));
        r->offsets[v + 1] = r->offsets[v] + degree;
    }
    return r->offsets[r->vertices];
}

/* Memory of vertices, before the number of edges is known. */
static void make_vertices(struct ranking *r) {
    r->offsets = make_offsets((r->vertices + 1) * sizeof *r->offsets);
    r->out = make_out_degrees(r->vertices * sizeof *r->out);
}

/* The in-edges of each vertex, in the order in which they are stored. */
static void build(struct ranking *r, uint64_t edges) {
    make_vertices(r);
    r->edges = fill_offsets(r, edges);
    memset(r->out, 0, r->vertices * sizeof *r->out);
    r->neighbours = make_neighbours(r->edges * sizeof *r->neighbours);
    for (uint64_t v = 0; v < r->vertices; v++) {
        uint64_t state = seeded(~options[SEED].value, v);
        uint32_t to = unscramble((uint32_t)v, r->bits), weight = weight_of(v);
        for (uint64_t k = r->offsets[v]; k < r->offsets[v + 1]; k++) {
            uint32_t from = kronecker_source(to, r->bits, &state);
            r->neighbours[k] = from;
            r->out[from].degree++;
            r->out[from].weights += weight;
        }
    }
}

/* How a graph's file begins; offsets, out-degrees and neighbours follow. */
struct file_head {
    char magic[8];
    uint64_t vertices, edges, seed, wanted_edges;
};

static struct file_head head_of(const struct ranking *r, uint64_t wanted_edges) {
    return (struct file_head){"tclrank", r->vertices, r->edges, options[SEED].value, wanted_edges};
}

_Noreturn static void unusable(const char *what) {
    fprintf(stderr, "pagerank: cannot %s %s\n", what, texts[GRAPH_FILE].value);
    exit(3);
}

static void save(const struct ranking *r, uint64_t wanted_edges) {
    struct file_head head = head_of(r, wanted_edges);
    FILE *file = fopen(texts[GRAPH_FILE].value, "wb");
    bool is_whole =
        file != NULL && fwrite(&head, sizeof head, 1, file) == 1 &&
        fwrite(r->offsets, sizeof *r->offsets, r->vertices + 1, file) == r->vertices + 1 &&
        fwrite(r->out, sizeof *r->out, r->vertices, file) == r->vertices &&
        fwrite(r->neighbours, sizeof *r->neighbours, r->edges, file) == r->edges;
    if (file == NULL || fclose(file) != 0 || !is_whole) {
        unusable("write");
    }
}

/* Whether offsets ascend to the number of edges, and neighbours are vertices. */
static bool is_graph(const struct ranking *r) {
    bool is_right = r->offsets[0] == 0 && r->offsets[r->vertices] == r->edges;
    for (uint64_t v = 0; v < r->vertices; v++) {
        is_right &= r->offsets[v] <= r->offsets[v + 1];
    }
    for (uint64_t k = 0; k < r->edges; k++) {
        is_right &= r->neighbours[k] < r->vertices;
    }
    return is_right;
}

/* Reads the graph through the page cache. False: there is no file, or it is of another graph. */
static bool load(struct ranking *r, uint64_t wanted_edges) {
    struct file_head head, own = head_of(r, wanted_edges);
    FILE *file = fopen(texts[GRAPH_FILE].value, "rb");
    if (file == NULL) {
        return false;
    }
    bool has_head = fread(&head, sizeof head, 1, file) == 1;
    own.edges = head.edges;
    if (!has_head || memcmp(&head, &own, sizeof head) != 0 ||
        head.edges > wanted_edges + r->vertices) {
        fclose(file);
        return false;
    }
    r->edges = head.edges;
    make_vertices(r);
    r->neighbours = make_neighbours(r->edges * sizeof *r->neighbours);
    bool is_whole =
        fread(r->offsets, sizeof *r->offsets, r->vertices + 1, file) == r->vertices + 1 &&
        fread(r->out, sizeof *r->out, r->vertices, file) == r->vertices &&
        fread(r->neighbours, sizeof *r->neighbours, r->edges, file) == r->edges;
    fclose(file);
    if (!is_whole || !is_graph(r)) {
        unusable("use the damaged");
    }
    return true;
}

/* The graph, made or read, and what ranks need. */
static void prepare(struct ranking *r, uint64_t edges) {
    bool has_file = texts[GRAPH_FILE].value[0] != 0;
    if (!has_file || !load(r, edges)) {
        build(r, edges);
        if (has_file) {
            save(r, edges);
        }
    }
    r->ranks = make_ranks(r->vertices * sizeof *r->ranks);
    r->new_ranks = make_ranks(r->vertices * sizeof *r->new_ranks);
    r->contributions = make_contributions(r->vertices * sizeof *r->contributions);
}

/* The contribution of each vertex to each out-neighbour; that of vertices without any, to all. */
static double contribute(struct member *member) {
    struct ranking *r = member->job;
    struct range mine = my_share(member, r->vertices);
    double dangling = 0.0;
    for (uint64_t v = mine.begin; v < mine.end; v++) {
        uint32_t degree = r->out[v].degree;
        r->contributions[v] = degree ? r->ranks[v] / degree : 0.0;
        dangling += degree ? 0.0 : r->ranks[v];
    }
    return sum_of_all(member, dangling);
}

static void rank_share(struct member *member) {
    struct ranking *r = member->job;
    struct range mine = my_share(member, r->vertices);
    double each = 1.0 / (double)r->vertices;
    for (uint64_t v = mine.begin; v < mine.end; v++) {
        r->ranks[v] = each;
    }
    for (uint64_t i = 0; i < options[ITERATIONS].value; i++) {
        double given = (1.0 - DAMPING + DAMPING * contribute(member)) * each, change = 0.0;
        for (uint64_t v = mine.begin; v < mine.end; v++) {
            double sum = 0.0;
            for (uint64_t k = r->offsets[v]; k < r->offsets[v + 1]; k++) {
                sum += r->contributions[r->neighbours[k]];
            }
            r->new_ranks[v] = given + DAMPING * sum;
            change += fabs(r->new_ranks[v] - r->ranks[v]);
        }
        change = sum_of_all(member, change);
        if (member->me == 0) {
            double *kept = r->ranks;
            r->ranks = r->new_ranks;
            r->new_ranks = kept;
            r->change = change;
        }
        wait_for_all(member);
    }
}

/* The last iteration again, as a sum over all vertices with random weights: pulled along the
 * neighbours, and as it would have been pushed along the edges when they were made (Freivalds). The
 * contributions are still those it used. */
static bool last_iteration_is_right(const struct ranking *r, double *sum) {
    double pulled = 0.0, pushed = 0.0, dangling = 0.0, weights = 0.0;
    *sum = 0.0;
    for (uint64_t v = 0; v < r->vertices; v++) {
        double weight = (double)weight_of(v);
        weights += weight;
        *sum += r->ranks[v];
        pulled += weight * r->ranks[v];
        pushed += r->contributions[v] * (double)r->out[v].weights;
        dangling += r->out[v].degree ? 0.0 : r->new_ranks[v];
    }
    double given = (1.0 - DAMPING + DAMPING * dangling) / (double)r->vertices;
    pushed = given * weights + DAMPING * pushed;
    return fabs(pulled - pushed) < 1e-9 * pushed;
}

int main(int argc, char **argv) {
    read_all_options(argc, argv, options, sizeof options / sizeof *options, texts,
                     sizeof texts / sizeof *texts);
    static struct ranking r;
    uint64_t threads = options[THREADS].value, bytes = options[TOTAL_MIB].value * MIB;
    while ((VERTEX_BYTES + EDGE_FACTOR * EDGE_BYTES) << (r.bits + 1) <= bytes * 3 / 2) {
        r.bits++;
    }
    r.vertices = UINT64_C(1) << r.bits;
    uint64_t edges =
        bytes > r.vertices * VERTEX_BYTES ? (bytes - r.vertices * VERTEX_BYTES) / EDGE_BYTES : 0;
    if (r.bits < 4 || r.bits > 31 || edges == 0 || options[ITERATIONS].value == 0 || threads == 0 ||
        threads > THREADS_MAX) {
        usage_all(argv[0], options, sizeof options / sizeof *options, texts,
                  sizeof texts / sizeof *texts);
    }
    prepare(&r, edges);
    for (uint64_t i = 0; options[CORRUPT].value && i < r.edges; i += 1009) {
        r.neighbours[i] = (uint32_t)((r.neighbours[i] + 1) % r.vertices);
    }
    uint64_t begun = region_begin();
    run_team(threads, rank_share, &r);
    uint64_t took = region_end(begun), digest = 0;
    for (uint64_t v = 0; v < r.vertices; v++) {
        digest += mix(bits_of(r.ranks[v]) + v);
    }
    double sum;
    bool right = last_iteration_is_right(&r, &sum);
    right &= fabs(sum - 1.0) < 1e-9;
    uint64_t operations = options[ITERATIONS].value * r.edges;
    give_back(r.contributions, r.vertices * sizeof *r.contributions);
    give_back(r.new_ranks, r.vertices * sizeof *r.new_ranks);
    give_back(r.ranks, r.vertices * sizeof *r.ranks);
    give_back(r.neighbours, r.edges * sizeof *r.neighbours);
    give_back(r.out, r.vertices * sizeof *r.out);
    give_back(r.offsets, (r.vertices + 1) * sizeof *r.offsets);
    struct outcome out = {"pagerank", "edges", operations, took, digest, right};
    return conclude(&out);
}
