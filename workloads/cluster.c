/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * cluster: points are assigned to the nearest of some medians, which are replaced where that helps,
 * as in PARSEC's streamcluster.
 * In: size, candidates. Out: one line; right when each point is assigned to its nearest median.
 * Knows nothing of tiers: the coordinates of a point are a small object, read for each candidate;
 * labels and origins, made in turns with them, are not read.
 */
#include "workload.h"

enum { TOTAL_MIB, CANDIDATES, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 64, "MiB in total"},
    [CANDIDATES] = {"candidates", 30, "medians that are tried"},
    [SEED] = {"seed", 1, "of points and candidates"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt an assignment, which the check must detect"},
};

#define DIMENSIONS 32 /* streamcluster's inputs have 32 to 128 */
#define LABEL_BYTES 48
#define ORIGIN_BYTES 320
#define MEDIANS 8
/* Of a point: coordinates, label, origin, its entry. */
#define POINT_BYTES (DIMENSIONS * 4 + 48 + 320 + 24)

struct point {
    float *coordinates;
    float distance; /* squared, to its median */
    uint32_t median;
    char *label;
};

SITE struct point *make_points(size_t count) {
    return must_alloc(count * sizeof(struct point));
}
SITE float *make_coordinates(void) {
    return must_alloc(DIMENSIONS * sizeof(float));
}
SITE char *make_label(void) {
    return must_alloc(LABEL_BYTES);
}
SITE char *make_origin(void) {
    return must_alloc(ORIGIN_BYTES);
}

static float distance(const float *a, const float *b) {
    float sum = 0;
    for (unsigned d = 0; d < DIMENSIONS; d++) {
        sum += (a[d] - b[d]) * (a[d] - b[d]);
    }
    return sum;
}

/* Points around centres, so that there is something to find. */
static struct point *generate(uint64_t count) {
    struct point *points = make_points(count);
    uint64_t state = seeded(options[SEED].value, 0);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t centre = seeded(options[SEED].value, 100 + random_below(&state, 2 * MEDIANS));
        points[i] = (struct point){.coordinates = make_coordinates(), .label = make_label()};
        snprintf(points[i].label, LABEL_BYTES, "point %" PRIu64, i);
        memset(make_origin(), 0, ORIGIN_BYTES);
        for (unsigned d = 0; d < DIMENSIONS; d++) {
            points[i].coordinates[d] = (float)(10 * random_unit(&centre) + random_unit(&state));
        }
    }
    return points;
}

static void assign(struct point *one, uint32_t median, const float *coordinates) {
    one->median = median;
    one->distance = distance(one->coordinates, coordinates);
}

/* Assigns a point to the nearest of all medians. */
static void assign_nearest(struct point *one, float *const *medians) {
    assign(one, 0, medians[0]);
    for (uint32_t m = 1; m < MEDIANS; m++) {
        if (distance(one->coordinates, medians[m]) < one->distance) {
            assign(one, m, medians[m]);
        }
    }
}

/* What replacing a median saves: points near the candidate come to it, those of the median go. */
static double gain_of(const struct point *points, uint64_t count, uint32_t median,
                      const float *candidate) {
    double gain = 0;
    for (uint64_t i = 0; i < count; i++) {
        float to = distance(points[i].coordinates, candidate);
        if (points[i].median == median || to < points[i].distance) {
            gain += points[i].distance - to;
        }
    }
    return gain;
}

static uint64_t search(struct point *points, uint64_t count, float **medians) {
    uint64_t state = seeded(options[SEED].value, 1), replaced = 0;
    for (uint64_t n = 0; n < options[CANDIDATES].value; n++) {
        float *candidate = points[random_below(&state, count)].coordinates;
        uint32_t median = (uint32_t)random_below(&state, MEDIANS);
        if (gain_of(points, count, median, candidate) <= 0) {
            continue;
        }
        medians[median] = candidate;
        replaced++;
        for (uint64_t i = 0; i < count; i++) {
            assign_nearest(&points[i], medians);
        }
    }
    return replaced;
}

static bool is_nearest(const struct point *points, uint64_t count, float *const *medians) {
    for (uint64_t i = 0; i < count; i++) {
        struct point again = points[i];
        assign_nearest(&again, medians);
        if (again.median != points[i].median || again.distance != points[i].distance) {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    uint64_t count = options[TOTAL_MIB].value * MIB / POINT_BYTES;
    if (count < MEDIANS || count >= UINT32_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    struct point *points = generate(count);
    float *medians[MEDIANS];
    for (uint32_t m = 0; m < MEDIANS; m++) {
        medians[m] = points[m * count / MEDIANS].coordinates;
    }
    for (uint64_t i = 0; i < count; i++) {
        assign_nearest(&points[i], medians);
    }
    uint64_t start = region_begin();
    uint64_t replaced = search(points, count, medians);
    uint64_t took = region_end(start);
    points[count / 2].distance += (float)options[CORRUPT].value;
    double cost = 0;
    for (uint64_t i = 0; i < count; i++) {
        cost += points[i].distance;
    }
    struct outcome out = {.name = "cluster",
                          .unit = "candidates",
                          .operations = options[CANDIDATES].value,
                          .took_ns = took,
                          .digest = mix(bits_of(cost) ^ replaced),
                          .right = is_nearest(points, count, medians)};
    return conclude(&out);
}
