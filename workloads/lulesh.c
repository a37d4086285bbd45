/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * lulesh: Lagrangian hydrodynamics of a point blast on a staggered grid of hexahedra, after LULESH:
 * positions and velocities at nodes, energy and pressure in elements, all connectivity by index.
 * Each phase of each time step allocates its temporaries and frees them, corner forces among them,
 * which are most of the memory while they live.
 * In: size, steps. Out: one line; right when kinetic and internal energy add up to the blast's
 * (the scheme keeps the sum but for rounding) and the blast is the same along all three axes.
 * Knows nothing of tiers: what lives through the run is hot in turns, temporaries are short-lived.
 */
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, STEPS, REGIONS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total while temporaries are most"},
    [STEPS] = {"steps", 10, "time steps"},
    [REGIONS] = {"regions", 11, "regions of material, 64 at most; LULESH has 11"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of what element is in which region"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt an energy half-way, which the check must detect"},
};

#define CORNERS 8         /* of a hexahedron */
#define REGIONS_MAX 64    /* chosen, not measured */
#define GAMMA 1.4         /* of a diatomic ideal gas */
#define BLAST 3.948746e+7 /* LULESH's, at the origin's element */
/* Chosen, not measured: a step well below the Courant limit, that grows slowly, and coefficients of
 * hourglass control and artificial viscosity with which the blast stays smooth and symmetric. */
#define COURANT 0.25
#define STEP_GROWTH 1.1
#define HOURGLASS 0.05
#define Q_QUADRATIC 2.0
#define Q_LINEAR 0.5
/* Of an element and its node at the peak: 8 + 10 values, connectivity (8 corners, 6 neighbours, a
 * region's list), the node's 8 corners; 24 corner forces and 48 temporaries of the hourglass. */
#define ELEMENT_BYTES (18 * 8 + (8 + 6 + 1) * 4 + 9 * 4 + (24 + 48) * 8)

struct hydro {
    uint64_t side, elements, nodes, regions;
    double *position[3], *velocity[3], *acceleration[3], *node_mass;
    double *energy, *pressure, *viscosity, *volume, *sound, *mass, *length, *compression;
    uint32_t (*corners)[CORNERS];
    uint32_t *neighbour[6];
    uint32_t (*node_corners)[CORNERS];
    uint32_t *node_corner_count;
    uint32_t *region[REGIONS_MAX];
    uint64_t region_count[REGIONS_MAX];
    /* Temporaries; NULL outside of their phases. */
    double *force[3], *stress, *slope[3], *corner_at[3];
    double *work, *new_volume, *jump[3], *width[3];
    double *old_energy, *old_pressure, *new_energy, *new_pressure;
    double limits[THREADS_MAX];
    double step_s, begun_energy;
};

SITE void *make_node_field(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE void *make_element_field(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE void *make_connectivity(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE void *make_region_lists(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_corner_forces(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_stress(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_hourglass_temporaries(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_work(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_volumes(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_gradients(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE double *make_material_temporaries(uint64_t bytes) {
    return must_alloc(bytes);
}

/* The corners of each face, seen from outside; corner c lies at bits 0, 1, 2 of c along x, y, z. */
static const int faces[6][4] = {{0, 4, 6, 2}, {1, 3, 7, 5}, {0, 1, 5, 4},
                                {2, 6, 7, 3}, {0, 2, 3, 1}, {4, 5, 7, 6}};
/* The four patterns of motion that change no volume and no mean gradient. */
static const double patterns[4][CORNERS] = {{1, 1, -1, -1, -1, -1, 1, 1},
                                            {1, -1, 1, -1, -1, 1, -1, 1},
                                            {1, -1, -1, 1, 1, -1, -1, 1},
                                            {-1, 1, 1, -1, 1, -1, -1, 1}};

static void gather(double *const field[3], const uint32_t *corners, double out[3][CORNERS]) {
    for (int d = 0; d < 3; d++) {
        for (int c = 0; c < CORNERS; c++) {
            out[d][c] = field[d][corners[c]];
        }
    }
}

/* The volume, and what moving each corner adds to it: a quarter of each of its faces. */
static double geometry(double at[3][CORNERS], double slope[3][CORNERS]) {
    double thrice = 0.0;
    memset(slope, 0, 3 * CORNERS * sizeof(double));
    for (int f = 0; f < 6; f++) {
        const int *k = faces[f];
        double u[3], w[3], centre[3];
        for (int d = 0; d < 3; d++) {
            u[d] = at[d][k[2]] - at[d][k[0]];
            w[d] = at[d][k[3]] - at[d][k[1]];
            centre[d] = at[d][k[0]] + at[d][k[1]] + at[d][k[2]] + at[d][k[3]];
        }
        for (int d = 0; d < 3; d++) {
            int e = (d + 1) % 3, g = (d + 2) % 3;
            double quarter = 0.125 * (u[e] * w[g] - u[g] * w[e]);
            thrice += quarter * centre[d];
            for (int i = 0; i < 4; i++) {
                slope[d][k[i]] += quarter;
            }
        }
    }
    return thrice / 3.0;
}

/* Forces of pressure on the corners. */
static void stress_phase(struct member *member) {
    struct hydro *h = member->job;
    struct range mine = my_share(member, h->elements);
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        h->stress[e] = h->pressure[e] + h->viscosity[e];
    }
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        double at[3][CORNERS], slope[3][CORNERS];
        gather(h->position, h->corners[e], at);
        geometry(at, slope);
        for (int d = 0; d < 3; d++) {
            for (int c = 0; c < CORNERS; c++) {
                h->force[d][e * CORNERS + (uint64_t)c] = h->stress[e] * slope[d][c];
            }
        }
    }
}

static void hourglass_geometry_phase(struct member *member) {
    struct hydro *h = member->job;
    struct range mine = my_share(member, h->elements);
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        double at[3][CORNERS], slope[3][CORNERS];
        gather(h->position, h->corners[e], at);
        geometry(at, slope);
        for (int d = 0; d < 3; d++) {
            memcpy(h->corner_at[d] + e * CORNERS, at[d], sizeof at[d]);
            memcpy(h->slope[d] + e * CORNERS, slope[d], sizeof slope[d]);
        }
    }
}

/* Flanagan and Belytschko's damping: the patterns, made blind to linear motion, against the
 * velocities. */
static void hourglass_phase(struct member *member) {
    struct hydro *h = member->job;
    struct range mine = my_share(member, h->elements);
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        double velocity[3][CORNERS];
        gather(h->velocity, h->corners[e], velocity);
        double damping =
            HOURGLASS * h->mass[e] / h->volume[e] * h->sound[e] * h->length[e] * h->length[e];
        for (int m = 0; m < 4; m++) {
            double pattern[CORNERS];
            memcpy(pattern, patterns[m], sizeof pattern);
            for (int d = 0; d < 3; d++) {
                const double *at = h->corner_at[d] + e * CORNERS,
                             *slope = h->slope[d] + e * CORNERS;
                double moment = 0.0;
                for (int c = 0; c < CORNERS; c++) {
                    moment += at[c] * patterns[m][c];
                }
                for (int c = 0; c < CORNERS; c++) {
                    pattern[c] -= slope[c] * moment / h->volume[e];
                }
            }
            for (int d = 0; d < 3; d++) {
                double rate = 0.0, *force = h->force[d] + e * CORNERS;
                for (int c = 0; c < CORNERS; c++) {
                    rate += pattern[c] * velocity[d][c];
                }
                for (int c = 0; c < CORNERS; c++) {
                    force[c] -= damping * rate * pattern[c];
                }
            }
        }
    }
}

/* Nodes: sum of the corner forces, acceleration, velocity, position. The planes through the origin
 * are mirrors. */
static void node_phase(struct member *member) {
    struct hydro *h = member->job;
    uint64_t edge = h->side + 1;
    struct range mine = my_share(member, h->nodes);
    for (uint64_t n = mine.begin; n < mine.end; n++) {
        bool mirror[3] = {n % edge == 0, n / edge % edge == 0, n / edge / edge == 0};
        for (int d = 0; d < 3; d++) {
            double force = 0.0;
            for (uint32_t i = 0; i < h->node_corner_count[n]; i++) {
                force += h->force[d][h->node_corners[n][i]];
            }
            h->acceleration[d][n] = mirror[d] ? 0.0 : force / h->node_mass[n];
            h->velocity[d][n] += h->acceleration[d][n] * h->step_s;
            h->position[d][n] += h->velocity[d][n] * h->step_s;
        }
    }
}

/* The elements lose the energy that the corner forces give to the nodes: with the mean of the
 * velocities before and after, this is the kinetic energy except for rounding. */
static void work_phase(struct member *member) {
    struct hydro *h = member->job;
    struct range mine = my_share(member, h->elements);
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        double velocity[3][CORNERS], acceleration[3][CORNERS], work = 0.0;
        gather(h->velocity, h->corners[e], velocity);
        gather(h->acceleration, h->corners[e], acceleration);
        for (int d = 0; d < 3; d++) {
            for (int c = 0; c < CORNERS; c++) {
                double mean = velocity[d][c] - 0.5 * h->step_s * acceleration[d][c];
                work += h->force[d][e * CORNERS + (uint64_t)c] * mean;
            }
        }
        h->work[e] = work * h->step_s;
    }
}

/* New volumes; widths along the element's axes and how fast their ends approach. */
static void gradient_phase(struct member *member) {
    struct hydro *h = member->job;
    struct range mine = my_share(member, h->elements);
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        double at[3][CORNERS], slope[3][CORNERS], velocity[3][CORNERS], least = INFINITY;
        gather(h->position, h->corners[e], at);
        gather(h->velocity, h->corners[e], velocity);
        h->new_volume[e] = geometry(at, slope);
        for (int axis = 0; axis < 3; axis++) {
            double square = 0.0, along = 0.0;
            for (int d = 0; d < 3; d++) {
                double reach = 0.0, speed = 0.0;
                for (int c = 0; c < CORNERS; c++) {
                    double sign = c >> axis & 1 ? 0.25 : -0.25;
                    reach += sign * at[d][c];
                    speed += sign * velocity[d][c];
                }
                square += reach * reach;
                along += reach * speed;
            }
            double width = sqrt(square);
            h->width[axis][e] = width;
            h->jump[axis][e] = along / width;
            least = fmin(least, width);
        }
        h->length[e] = least;
        h->compression[e] = (h->new_volume[e] - h->volume[e]) / (h->volume[e] * h->step_s);
    }
}

/* Artificial viscosity where an element is compressed, limited by its neighbours' jumps. */
static void viscosity_phase(struct member *member) {
    struct hydro *h = member->job;
    struct range mine = my_share(member, h->elements);
    for (uint64_t e = mine.begin; e < mine.end; e++) {
        double density = h->mass[e] / h->new_volume[e], sum = 0.0;
        for (int axis = 0; axis < 3; axis++) {
            double jump = h->jump[axis][e];
            if (jump >= 0.0 || h->compression[e] >= 0.0) {
                continue;
            }
            double before = h->jump[axis][h->neighbour[2 * axis][e]] / jump;
            double after = h->jump[axis][h->neighbour[2 * axis + 1][e]] / jump;
            double limit = fmin(0.5 * (before + after), 2.0 * fmin(before, after));
            limit = fmax(0.0, fmin(1.0, limit));
            sum += Q_QUADRATIC * jump * jump * (1.0 - limit * limit);
            sum -= Q_LINEAR * h->sound[e] * jump * (1.0 - limit);
        }
        h->viscosity[e] = density * sum;
    }
}

/* An ideal gas, region by region, through temporaries of the region's size. */
static void material_phase(struct member *member, uint64_t region) {
    struct hydro *h = member->job;
    const uint32_t *list = h->region[region];
    struct range mine = my_share(member, h->region_count[region]);
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        h->old_energy[i] = h->energy[list[i]];
        h->old_pressure[i] = h->pressure[list[i]];
    }
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        uint32_t e = list[i];
        h->new_energy[i] = h->old_energy[i] - h->work[e] / h->mass[e];
        double density = h->mass[e] / h->new_volume[e];
        h->new_pressure[i] = fmax(0.0, (GAMMA - 1.0) * density * h->new_energy[i]);
    }
    double least = INFINITY;
    for (uint64_t i = mine.begin; i < mine.end; i++) {
        uint32_t e = list[i];
        h->energy[e] = h->new_energy[i];
        h->pressure[e] = h->new_pressure[i];
        h->volume[e] = h->new_volume[e];
        h->sound[e] = sqrt(GAMMA * h->new_pressure[i] * h->volume[e] / h->mass[e]);
        double change = fabs(h->new_pressure[i] - h->old_pressure[i]);
        double fastest = h->sound[e] + sqrt((h->viscosity[e] + change) * h->volume[e] / h->mass[e]);
        least = fmin(least, h->length[e] / (fastest + 1e-30));
    }
    h->limits[member->me] = fmin(h->limits[member->me], least);
}

typedef double *maker(uint64_t bytes);

/* Allocates `count` fields of `each` values, once for the whole team. */
static void make_shared(struct member *member, maker *make, double **fields[], int count,
                        uint64_t each) {
    for (int i = 0; member->me == 0 && i < count; i++) {
        *fields[i] = make(each * sizeof(double));
    }
    wait_for_all(member);
}

static void free_shared(struct member *member, double **fields[], int count, uint64_t each) {
    wait_for_all(member);
    for (int i = 0; member->me == 0 && i < count; i++) {
        give_back(*fields[i], each * sizeof(double));
        *fields[i] = NULL;
    }
}

static void announce(struct member *member, const char *phase) {
    if (member->me == 0) {
        enter_phase(phase);
    }
}

static void force_phases(struct member *member) {
    struct hydro *h = member->job;
    uint64_t n = h->elements;
    double **stress[] = {&h->stress};
    announce(member, "stress");
    make_shared(member, make_stress, stress, 1, n);
    stress_phase(member);
    free_shared(member, stress, 1, n);
    double **eight[] = {&h->slope[0],     &h->slope[1],     &h->slope[2],
                        &h->corner_at[0], &h->corner_at[1], &h->corner_at[2]};
    announce(member, "hourglass");
    make_shared(member, make_hourglass_temporaries, eight, 6, n * CORNERS);
    hourglass_geometry_phase(member);
    hourglass_phase(member);
    free_shared(member, eight, 6, n * CORNERS);
}

static void element_phases(struct member *member) {
    struct hydro *h = member->job;
    uint64_t n = h->elements;
    double **gradients[] = {&h->jump[0],  &h->jump[1],  &h->jump[2],
                            &h->width[0], &h->width[1], &h->width[2]};
    announce(member, "viscosity");
    make_shared(member, make_gradients, gradients, 6, n);
    gradient_phase(member);
    wait_for_all(member);
    viscosity_phase(member);
    free_shared(member, gradients, 6, n);
    double **four[] = {&h->old_energy, &h->old_pressure, &h->new_energy, &h->new_pressure};
    announce(member, "material");
    h->limits[member->me] = INFINITY;
    for (uint64_t r = 0; r < h->regions; r++) {
        make_shared(member, make_material_temporaries, four, 4, h->region_count[r]);
        material_phase(member, r);
        free_shared(member, four, 4, h->region_count[r]);
    }
}

static void time_step(struct member *member) {
    struct hydro *h = member->job;
    uint64_t n = h->elements;
    double **forces[] = {&h->force[0], &h->force[1], &h->force[2]};
    double **work[] = {&h->work}, **volumes[] = {&h->new_volume};
    make_shared(member, make_corner_forces, forces, 3, n * CORNERS);
    force_phases(member);
    announce(member, "nodes");
    node_phase(member);
    wait_for_all(member);
    announce(member, "work");
    make_shared(member, make_work, work, 1, n);
    work_phase(member);
    free_shared(member, forces, 3, n * CORNERS);
    make_shared(member, make_volumes, volumes, 1, n);
    element_phases(member);
    free_shared(member, volumes, 1, n);
    free_shared(member, work, 1, n);
    if (member->me == 0) {
        double least = INFINITY;
        for (uint64_t i = 0; i < member->of; i++) {
            least = fmin(least, h->limits[i]);
        }
        h->step_s = fmin(h->step_s * STEP_GROWTH, COURANT * least);
    }
    wait_for_all(member);
}

static void simulate(struct member *member) {
    struct hydro *h = member->job;
    for (uint64_t s = 0; s < options[STEPS].value; s++) {
        if (member->me == 0 && options[CORRUPT].value && s == options[STEPS].value / 2) {
            h->energy[h->elements / 3] += 1e-3 * h->begun_energy;
        }
        time_step(member);
    }
}

static void connect(struct hydro *h) {
    uint64_t side = h->side, edge = side + 1;
    memset(h->node_corner_count, 0, h->nodes * sizeof *h->node_corner_count);
    for (uint64_t e = 0; e < h->elements; e++) {
        uint64_t at[3] = {e % side, e / side % side, e / side / side}, stride = 1;
        for (uint32_t c = 0; c < CORNERS; c++) {
            uint64_t z = at[2] + (c >> 2), y = at[1] + (c >> 1 & 1), x = at[0] + (c & 1);
            uint32_t node = (uint32_t)((z * edge + y) * edge + x);
            h->corners[e][c] = node;
            h->node_corners[node][h->node_corner_count[node]++] = (uint32_t)(e * CORNERS + c);
        }
        for (int axis = 0; axis < 3; axis++, stride *= side) {
            h->neighbour[2 * axis][e] = (uint32_t)(at[axis] > 0 ? e - stride : e);
            h->neighbour[2 * axis + 1][e] = (uint32_t)(at[axis] + 1 < side ? e + stride : e);
        }
    }
}

/* Runs of 64 elements are assigned to regions at random. */
static void divide(struct hydro *h) {
    uint32_t *lists = make_region_lists(h->elements * sizeof *lists);
    uint64_t used = 0;
    for (uint64_t r = 0; r < h->regions; r++) {
        h->region[r] = lists + used;
        for (uint64_t e = 0; e < h->elements; e++) {
            if (seeded(options[SEED].value, e / 64) % h->regions == r) {
                lists[used++] = (uint32_t)e;
            }
        }
        h->region_count[r] = (uint64_t)(lists + used - h->region[r]);
    }
}

static void fill(struct hydro *h) {
    uint64_t edge = h->side + 1;
    double width = 1.125 / (double)h->side;
    for (uint64_t n = 0; n < h->nodes; n++) {
        uint64_t at[3] = {n % edge, n / edge % edge, n / edge / edge};
        for (int d = 0; d < 3; d++) {
            h->position[d][n] = width * (double)at[d];
            h->velocity[d][n] = h->acceleration[d][n] = 0.0;
        }
        h->node_mass[n] = 0.0;
    }
    for (uint64_t e = 0; e < h->elements; e++) {
        h->volume[e] = h->mass[e] = width * width * width;
        h->energy[e] = e == 0 ? BLAST / h->mass[e] : 0.0;
        h->pressure[e] = (GAMMA - 1.0) * h->energy[e];
        h->sound[e] = sqrt(GAMMA * h->pressure[e]);
        h->viscosity[e] = h->compression[e] = 0.0;
        h->length[e] = width;
        for (int c = 0; c < CORNERS; c++) {
            h->node_mass[h->corners[e][c]] += h->mass[e] / CORNERS;
        }
    }
    h->begun_energy = BLAST;
    h->step_s = 0.1 * COURANT * width / h->sound[0];
}

static void build(struct hydro *h) {
    for (int d = 0; d < 3; d++) {
        double **fields[] = {&h->position[d], &h->velocity[d], &h->acceleration[d]};
        for (int f = 0; f < 3; f++) {
            *fields[f] = make_node_field(h->nodes * sizeof(double));
        }
    }
    h->node_mass = make_node_field(h->nodes * sizeof(double));
    double **fields[] = {&h->energy, &h->pressure, &h->viscosity, &h->volume,
                         &h->sound,  &h->mass,     &h->length,    &h->compression};
    for (int f = 0; f < 8; f++) {
        *fields[f] = make_element_field(h->elements * sizeof(double));
    }
    h->corners = make_connectivity(h->elements * sizeof *h->corners);
    for (int i = 0; i < 6; i++) {
        h->neighbour[i] = make_connectivity(h->elements * sizeof(uint32_t));
    }
    h->node_corners = make_connectivity(h->nodes * sizeof *h->node_corners);
    h->node_corner_count = make_connectivity(h->nodes * sizeof(uint32_t));
    connect(h);
    divide(h);
    fill(h);
}

static bool energy_is_kept(const struct hydro *h) {
    double sum = 0.0;
    for (uint64_t e = 0; e < h->elements; e++) {
        sum += h->mass[e] * h->energy[e];
    }
    for (uint64_t n = 0; n < h->nodes; n++) {
        for (int d = 0; d < 3; d++) {
            sum += 0.5 * h->node_mass[n] * h->velocity[d][n] * h->velocity[d][n];
        }
    }
    return fabs(sum - h->begun_energy) < 1e-9 * h->begun_energy;
}

/* The same with axes exchanged; and the blast has left its element. */
static bool blast_is_symmetric(const struct hydro *h) {
    uint64_t side = h->side;
    double apart = 0.0, most = 0.0;
    for (uint64_t e = 0; e < h->elements; e++) {
        uint64_t x = e % side, y = e / side % side, z = e / side / side;
        double here = h->energy[e];
        most = fmax(most, fabs(here));
        apart = fmax(apart, fabs(here - h->energy[(z * side + x) * side + y]));
        apart = fmax(apart, fabs(here - h->energy[(x * side + y) * side + z]));
    }
    return apart < 1e-8 * most && h->mass[0] * h->energy[0] < (1.0 - 1e-6) * h->begun_energy;
}

static void tear_down(struct hydro *h) {
    for (int d = 0; d < 3; d++) {
        give_back(h->position[d], h->nodes * sizeof(double));
        give_back(h->velocity[d], h->nodes * sizeof(double));
        give_back(h->acceleration[d], h->nodes * sizeof(double));
    }
    give_back(h->node_mass, h->nodes * sizeof(double));
    double *fields[] = {h->energy, h->pressure, h->viscosity, h->volume,
                        h->sound,  h->mass,     h->length,    h->compression};
    for (int f = 0; f < 8; f++) {
        give_back(fields[f], h->elements * sizeof(double));
    }
    give_back(h->corners, h->elements * sizeof *h->corners);
    for (int i = 0; i < 6; i++) {
        give_back(h->neighbour[i], h->elements * sizeof(uint32_t));
    }
    give_back(h->node_corners, h->nodes * sizeof *h->node_corners);
    give_back(h->node_corner_count, h->nodes * sizeof(uint32_t));
    give_back(h->region[0], h->elements * sizeof(uint32_t));
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct hydro h;
    uint64_t threads = options[THREADS].value;
    h.side = (uint64_t)cbrt((double)(options[TOTAL_MIB].value * MIB / ELEMENT_BYTES));
    h.elements = h.side * h.side * h.side;
    h.nodes = (h.side + 1) * (h.side + 1) * (h.side + 1);
    h.regions = options[REGIONS].value;
    if (h.side < 4 || h.elements * CORNERS > UINT32_MAX || h.regions == 0 ||
        h.regions > REGIONS_MAX || options[STEPS].value == 0 || threads == 0 ||
        threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    build(&h);
    uint64_t begun = region_begin();
    run_team(threads, simulate, &h);
    uint64_t took = region_end(begun), digest = 0;
    bool right = energy_is_kept(&h) && blast_is_symmetric(&h);
    for (uint64_t e = 0; e < h.elements; e++) {
        digest = mix(digest + bits_of(h.energy[e]));
    }
    uint64_t operations = options[STEPS].value * h.elements;
    struct outcome out = {"lulesh", "element-steps", operations, took, digest, right};
    tear_down(&h);
    return conclude(&out);
}
