/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * minife: an implicit finite-element step on an unstructured mesh, after miniFE: assembly of
 * trilinear hexahedra into a sparse matrix (CSR, 27 entries a row), then conjugate gradients.
 * In: size, irregularity. Out: one line; right when the matrix is symmetric and its entries add up
 * to the mesh's volume, the true residual is small and the solution is the one that the right-hand
 * side was made from.
 * Knows nothing of tiers: the mesh comes first and is cold while the solver runs; the matrix is
 * streamed; the search direction is gathered and hottest.
 */
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, WINDOW, DIGITS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total"},
    [WINDOW] = {"window", 32768, "nodes are numbered at random within windows of so many"},
    [DIGITS] = {"digits", 9, "digits by which the solver lowers the residual, 3 to 12"},
    [THREADS] = {"threads", 1, "threads of the solver, 64 at most"},
    [SEED] = {"seed", 1, "of numbering, material and solution"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the matrix, which the check must detect"},
};

#define CORNERS 8          /* of a hexahedron */
#define ROW_MAX 27         /* 3^3: a node and its neighbours */
#define ITERATIONS_MAX 200 /* chosen: several times the 30 that it needs */
/* The relative error is at most this many times the relative residual. */
#define CONDITION 3
/* The reaction term by stiffness: an implicit time step of diffusion some mesh widths long. It
 * bounds the condition number at any size, so that the solver ends after some 30 iterations (of 9
 * digits). */
#define REACTION 0.3
/* For each node: connectivity, coordinates, 27 matrix entries, row offset, six vectors. */
#define NODE_BYTES (CORNERS * 4 + 24 + ROW_MAX * 12 + 8 + 6 * 8)

struct mesh {
    /* Nodes along an edge of the cube; elements are one fewer. */
    uint64_t side;
    uint64_t nodes;
    uint64_t elements;
    double (*coordinates)[3];
    uint32_t (*connectivity)[CORNERS];
};

struct system {
    struct mesh mesh;
    uint64_t *row_begin;
    uint32_t *columns;
    double *values;
    double *solution, *right_side, *found, *residual, *direction, *product;
    double tolerance;
    uint64_t iterations;
    /* Residual of the last iteration, relative: by the recurrence, and computed anew. */
    double residual_norm, true_norm;
};

SITE void *make_coordinates(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE void *make_connectivity(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint64_t *make_row_begin(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_columns(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_values(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_solution(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_right_side(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_found(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_residual(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_direction(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_product(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint32_t *make_numbering(uint64_t bytes) {
    return must_alloc(bytes);
}

/* The number of each node of the grid: shuffled window by window, as a mesh generator's are near
 * but not beside each other. */
static void fill_numbering(uint32_t *number, uint64_t nodes, uint64_t *state) {
    uint64_t window = options[WINDOW].value;
    for (uint64_t i = 0; i < nodes; i++) {
        number[i] = (uint32_t)i;
    }
    for (uint64_t first = 0; first < nodes; first += window) {
        uint64_t count = nodes - first < window ? nodes - first : window;
        for (uint64_t i = count - 1; i > 0; i--) {
            uint64_t j = random_below(state, i + 1);
            uint32_t kept = number[first + i];
            number[first + i] = number[first + j];
            number[first + j] = kept;
        }
    }
}

static void fill_mesh(struct mesh *mesh, const uint32_t *number) {
    uint64_t side = mesh->side, element = 0;
    for (uint64_t i = 0; i < mesh->nodes; i++) {
        double *at = mesh->coordinates[number[i]];
        at[0] = (double)(i % side);
        at[1] = (double)(i / side % side);
        at[2] = (double)(i / side / side);
    }
    for (uint64_t z = 0; z + 1 < side; z++) {
        for (uint64_t y = 0; y + 1 < side; y++) {
            for (uint64_t x = 0; x + 1 < side; x++, element++) {
                for (uint64_t c = 0; c < CORNERS; c++) {
                    uint64_t dx = c & 1, dy = c >> 1 & 1, dz = c >> 2;
                    uint64_t at = ((z + dz) * side + y + dy) * side + x + dx;
                    mesh->connectivity[element][c] = number[at];
                }
            }
        }
    }
}

static int by_number(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* The pattern: each node with all nodes of the elements it is a corner of, in order. */
static void fill_pattern(struct system *s, const uint32_t *number) {
    uint64_t side = s->mesh.side;
    uint64_t *begin = s->row_begin;
    memset(begin, 0, (s->mesh.nodes + 1) * sizeof *begin);
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < s->mesh.nodes; i++) {
            uint64_t x = i % side, y = i / side % side, z = i / side / side, count = 0;
            uint32_t row[ROW_MAX];
            for (uint64_t k = z - (z > 0); k <= z + (z + 1 < side); k++) {
                for (uint64_t j = y - (y > 0); j <= y + (y + 1 < side); j++) {
                    for (uint64_t h = x - (x > 0); h <= x + (x + 1 < side); h++) {
                        row[count++] = number[(k * side + j) * side + h];
                    }
                }
            }
            if (pass == 0) {
                begin[number[i] + 1] = count;
            } else {
                qsort(row, count, sizeof *row, by_number);
                memcpy(s->columns + begin[number[i]], row, count * sizeof *row);
            }
        }
        for (uint64_t i = 0; pass == 0 && i < s->mesh.nodes; i++) {
            begin[i + 1] += begin[i];
        }
    }
}

/* Stiffness and mass of the unit cube's element, by 2 x 2 x 2 Gauss points, which are exact. */
static void unit_element(double stiffness[CORNERS][CORNERS], double mass[CORNERS][CORNERS]) {
    const double points[2] = {0.5 - 0.5 / sqrt(3.0), 0.5 + 0.5 / sqrt(3.0)};
    memset(stiffness, 0, CORNERS * CORNERS * sizeof(double));
    memset(mass, 0, CORNERS * CORNERS * sizeof(double));
    for (int q = 0; q < 8; q++) {
        double at[3] = {points[q & 1], points[q >> 1 & 1], points[q >> 2]};
        double shape[CORNERS], slope[CORNERS][3];
        for (int c = 0; c < CORNERS; c++) {
            double part[3], sign[3];
            for (int d = 0; d < 3; d++) {
                bool far = c >> d & 1;
                part[d] = far ? at[d] : 1.0 - at[d];
                sign[d] = far ? 1.0 : -1.0;
            }
            shape[c] = part[0] * part[1] * part[2];
            slope[c][0] = sign[0] * part[1] * part[2];
            slope[c][1] = part[0] * sign[1] * part[2];
            slope[c][2] = part[0] * part[1] * sign[2];
        }
        for (int a = 0; a < CORNERS; a++) {
            for (int b = 0; b < CORNERS; b++) {
                double dot = slope[a][0] * slope[b][0] + slope[a][1] * slope[b][1];
                stiffness[a][b] += (dot + slope[a][2] * slope[b][2]) / 8.0;
                mass[a][b] += shape[a] * shape[b] / 8.0;
            }
        }
    }
}

/* The entry of row `row` in column `column`, which is there. */
static double *entry(const struct system *s, uint32_t row, uint32_t column) {
    uint64_t low = s->row_begin[row], high = s->row_begin[row + 1];
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (s->columns[middle] <= column) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &s->values[low];
}

/* Diffusion with a conductivity of 1 to 2 in each element, and reaction. */
static void assemble(struct system *s) {
    double stiffness[CORNERS][CORNERS], mass[CORNERS][CORNERS];
    unit_element(stiffness, mass);
    memset(s->values, 0, s->row_begin[s->mesh.nodes] * sizeof(double));
    for (uint64_t e = 0; e < s->mesh.elements; e++) {
        const uint32_t *corners = s->mesh.connectivity[e];
        double conductivity = 1.0 + (double)(mix(e + options[SEED].value) >> 40) * 0x1p-24;
        for (int a = 0; a < CORNERS; a++) {
            for (int b = 0; b < CORNERS; b++) {
                *entry(s, corners[a], corners[b]) +=
                    conductivity * stiffness[a][b] + REACTION * mass[a][b];
            }
        }
    }
}

/* product = matrix x vector, for the rows of `mine`. */
static void multiply(const struct system *s, struct range mine, const double *vector,
                     double *product) {
    for (uint64_t row = mine.begin; row < mine.end; row++) {
        double sum = 0.0;
        for (uint64_t i = s->row_begin[row]; i < s->row_begin[row + 1]; i++) {
            sum += s->values[i] * vector[s->columns[i]];
        }
        product[row] = sum;
    }
}

static double dot(struct member *member, struct range mine, const double *a, const double *b) {
    double sum = 0.0;
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        sum += a[i] * b[i];
    }
    return sum_of_all(member, sum);
}

/* Conjugate gradients from zero. */
static void solve_share(struct member *member) {
    struct system *s = member->job;
    struct range mine = my_share(member, s->mesh.nodes);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        s->found[i] = 0.0;
        s->residual[i] = s->direction[i] = s->right_side[i];
    }
    double begun = dot(member, mine, s->residual, s->residual), now = begun;
    uint64_t iteration = 0;
    for (; iteration < ITERATIONS_MAX && now > s->tolerance * s->tolerance * begun; iteration++) {
        multiply(s, mine, s->direction, s->product);
        double step = now / dot(member, mine, s->direction, s->product);
        for (uint64_t i = mine.begin; i < mine.end; i++) {
            s->found[i] += step * s->direction[i];
            s->residual[i] -= step * s->product[i];
        }
        double next = dot(member, mine, s->residual, s->residual), keep = next / now;
        for (uint64_t i = mine.begin; i < mine.end; i++) {
            s->direction[i] = s->residual[i] + keep * s->direction[i];
        }
        now = next;
        wait_for_all(member);
    }
    if (member->me == 0) {
        s->iterations = iteration;
        s->residual_norm = sqrt(now / begun);
    }
}

static void measure_share(struct member *member) {
    struct system *s = member->job;
    struct range mine = my_share(member, s->mesh.nodes);
    multiply(s, mine, s->found, s->product);
    double sum = 0.0, whole = dot(member, mine, s->right_side, s->right_side);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        double apart = s->right_side[i] - s->product[i];
        sum += apart * apart;
    }
    sum = sum_of_all(member, sum);
    if (member->me == 0) {
        s->true_norm = sqrt(sum / whole);
    }
}

static void make_right_side_of(struct member *member) {
    struct system *s = member->job;
    multiply(s, my_share(member, s->mesh.nodes), s->solution, s->right_side);
}

/* The matrix as it was assembled: stiffness knows no constants, so all entries add up to the
 * reaction of the whole volume; and it is symmetric, wherever we look. */
static bool matrix_is_right(const struct system *s) {
    double sum = 0.0, volume = REACTION * (double)s->mesh.elements;
    bool symmetric = true;
    for (uint64_t row = 0; row < s->mesh.nodes; row++) {
        for (uint64_t i = s->row_begin[row]; i < s->row_begin[row + 1]; i++) {
            sum += s->values[i];
        }
        if (row % 16 == 0) {
            uint64_t i = s->row_begin[row] + row % ROW_MAX % 8;
            double mirrored = *entry(s, s->columns[i], (uint32_t)row);
            symmetric &= fabs(s->values[i] - mirrored) < 1e-12;
        }
    }
    return symmetric && fabs(sum - volume) < 1e-9 * volume;
}

/* Relative distance of the computed solution from the true one, by sums of squares. */
static double error_of(const struct system *s) {
    double apart = 0.0, whole = 0.0;
    for (uint64_t i = 0; i < s->mesh.nodes; i++) {
        double off = s->found[i] - s->solution[i];
        apart += off * off;
        whole += s->solution[i] * s->solution[i];
    }
    return sqrt(apart / whole);
}

/* Mesh first, then matrix, then vectors, in miniFE's order. */
static void build(struct system *s, uint64_t *state) {
    struct mesh *mesh = &s->mesh;
    uint64_t vector = mesh->nodes * sizeof(double);
    uint32_t *number = make_numbering(mesh->nodes * sizeof *number);
    fill_numbering(number, mesh->nodes, state);
    mesh->coordinates = make_coordinates(mesh->nodes * sizeof *mesh->coordinates);
    mesh->connectivity = make_connectivity(mesh->elements * sizeof *mesh->connectivity);
    fill_mesh(mesh, number);
    s->row_begin = make_row_begin((mesh->nodes + 1) * sizeof *s->row_begin);
    uint64_t line = 3 * mesh->side - 2, entries = line * line * line;
    s->columns = make_columns(entries * sizeof *s->columns);
    fill_pattern(s, number);
    give_back(number, mesh->nodes * sizeof *number);
    s->values = make_values(entries * sizeof *s->values);
    assemble(s);
    s->solution = make_solution(vector);
    for (uint64_t i = 0; i < mesh->nodes; i++) {
        s->solution[i] = 1.0 + random_unit(state);
    }
    s->right_side = make_right_side(vector);
    s->found = make_found(vector);
    s->residual = make_residual(vector);
    s->direction = make_direction(vector);
    s->product = make_product(vector);
}

static void tear_down(struct system *s) {
    uint64_t nodes = s->mesh.nodes, entries = s->row_begin[nodes], vector = nodes * sizeof(double);
    double *vectors[] = {s->product, s->direction,  s->residual,
                         s->found,   s->right_side, s->solution};
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        give_back(vectors[v], vector);
    }
    give_back(s->values, entries * sizeof *s->values);
    give_back(s->columns, entries * sizeof *s->columns);
    give_back(s->row_begin, (nodes + 1) * sizeof *s->row_begin);
    give_back(s->mesh.connectivity, s->mesh.elements * sizeof *s->mesh.connectivity);
    give_back(s->mesh.coordinates, nodes * sizeof *s->mesh.coordinates);
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct system s;
    uint64_t threads = options[THREADS].value;
    s.mesh.side = (uint64_t)cbrt((double)(options[TOTAL_MIB].value * MIB / NODE_BYTES));
    s.mesh.nodes = s.mesh.side * s.mesh.side * s.mesh.side;
    if (s.mesh.side < 3 || s.mesh.nodes > UINT32_MAX || options[WINDOW].value == 0 ||
        options[DIGITS].value < 3 || options[DIGITS].value > 12 || threads == 0 ||
        threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    uint64_t elements_side = s.mesh.side - 1, state = seeded(options[SEED].value, 0);
    s.mesh.elements = elements_side * elements_side * elements_side;
    s.tolerance = pow(10.0, -(double)options[DIGITS].value);
    build(&s, &state);
    bool right = matrix_is_right(&s);
    run_team(threads, make_right_side_of, &s);
    for (uint64_t i = 0; options[CORRUPT].value && i < s.row_begin[s.mesh.nodes]; i += 10007) {
        s.values[i] += 1.0;
    }
    uint64_t begun = region_begin();
    run_team(threads, solve_share, &s);
    uint64_t took = region_end(begun);
    run_team(threads, measure_share, &s);
    /* The error is at most the residual times the condition number, about 10. */
    right &= s.true_norm < 2 * s.tolerance && error_of(&s) < CONDITION * s.tolerance;
    uint64_t operations = s.iterations * s.row_begin[s.mesh.nodes];
    struct outcome out = {"minife", "entries", operations, took, bits_of(s.residual_norm), right};
    tear_down(&s);
    return conclude(&out);
}
