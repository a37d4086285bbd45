/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * dnn: training steps of a dense network: random mini-batches, forward, backward, stochastic
 * gradient descent with momentum. Activations are allocated in each step and freed, as frameworks
 * do.
 * In: size, steps, batch. Out: one line; right when the loss of the first batch has fallen and, on
 * a small network, gradients are those that differences of the loss give.
 * Knows nothing of tiers: examples are touched a few at a time, weights streamed three times a
 * step, momentum once, activations small, short-lived and hot.
 */
#include "team.h"
#include <math.h>

enum { TOTAL_MIB, STEPS, BATCH, LAYERS, THREADS, SEED, CORRUPT };

static struct option options[] = {
    [TOTAL_MIB] = {"mib", 256, "MiB in total: 40% examples, the rest the network"},
    [STEPS] = {"steps", 20, "training steps"},
    [BATCH] = {"batch", 8, "examples in a mini-batch, 256 at most"},
    [LAYERS] = {"layers", 4, "layers of weights, 2 to 16"},
    [THREADS] = {"threads", 1, "threads, 64 at most"},
    [SEED] = {"seed", 1, "of weights, examples and batches"},
    [CORRUPT] = {"corrupt", 0, "1: corrupt the weights, which the check must detect"},
};

/* Chosen, not measured: the usual sizes of small networks. */
#define LAYERS_MAX 16
#define BATCH_MAX 256
#define CLASSES 16
/* The usual rates of gradient descent with momentum. */
#define RATE 0.01f
#define MOMENTUM 0.9f
/* The share of the first batch's loss that may be left after FEW_STEPS; before that the loss must
 * only fall. Chosen: training leaves much less. */
#define FEW_STEPS 4
#define LOSS_FALLS_TO 0.8

/* One layer: `out` rows of `in` weights; what belongs to it through the whole run. */
struct layer {
    uint64_t in, out;
    float *weights, *biases, *momentum, *gradient, *bias_gradient;
};

struct net {
    uint64_t layers, batch, inputs;
    struct layer layer[LAYERS_MAX];
    uint64_t examples;
    float *inputs_of;
    uint8_t *class_of;
    /* Of this step: which example is in each place of the batch, and the temporaries. activation[l]
     * is the input of layer l, activation[layers] the output; delta[l] is the slope of the loss by
     * the sums of layer l. */
    uint64_t chosen[BATCH_MAX];
    float *activation[LAYERS_MAX + 1], *delta[LAYERS_MAX];
    double loss;
    uint64_t steps;
    uint64_t state;
};

SITE float *make_examples(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE uint8_t *make_classes(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE float *make_weights(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE float *make_biases(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE float *make_momentum(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE float *make_gradient(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE float *make_activation(uint64_t bytes) {
    return must_alloc(bytes);
}
SITE float *make_delta(uint64_t bytes) {
    return must_alloc(bytes);
}

static float dot(const float *a, const float *b, uint64_t count) {
    float sums[4] = {0, 0, 0, 0};
    uint64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        for (int k = 0; k < 4; k++) {
            sums[k] += a[i + (uint64_t)k] * b[i + (uint64_t)k];
        }
    }
    for (; i < count; i++) {
        sums[0] += a[i] * b[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static void add_scaled(float *to, const float *from, float factor, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        to[i] += factor * from[i];
    }
}

/* Each row of weights serves the whole batch before the next one is read. */
static void forward(struct member *member) {
    struct net *n = member->job;
    for (uint64_t l = 0; l < n->layers; l++) {
        const struct layer *layer = &n->layer[l];
        struct range mine = my_share(member, layer->out);
        for (uint64_t row = mine.begin; row < mine.end; row++) {
            const float *weights = layer->weights + row * layer->in;
            for (uint64_t b = 0; b < n->batch; b++) {
                float sum = layer->biases[row];
                sum += dot(weights, n->activation[l] + b * layer->in, layer->in);
                bool rectify = l + 1 < n->layers && sum < 0.0f;
                n->activation[l + 1][b * layer->out + row] = rectify ? 0.0f : sum;
            }
        }
        wait_for_all(member);
    }
}

/* Softmax and cross-entropy: the mean loss, and its slope by the last layer's sums. */
static double loss_of(struct net *n) {
    double loss = 0.0;
    const struct layer *last = &n->layer[n->layers - 1];
    for (uint64_t b = 0; b < n->batch; b++) {
        const float *sums = n->activation[n->layers] + b * last->out;
        float *slopes = n->delta[n->layers - 1] + b * last->out;
        float most = sums[0];
        for (uint64_t c = 1; c < last->out; c++) {
            most = fmaxf(most, sums[c]);
        }
        double total = 0.0;
        for (uint64_t c = 0; c < last->out; c++) {
            total += exp((double)(sums[c] - most));
        }
        uint8_t class = n->class_of[n->chosen[b]];
        loss -= (double)(sums[class] - most) - log(total);
        for (uint64_t c = 0; c < last->out; c++) {
            double share = exp((double)(sums[c] - most)) / total;
            slopes[c] = (float)((share - (c == class)) / (double)n->batch);
        }
    }
    return loss / (double)n->batch;
}

/* Gradients of a share of layer l's rows. */
static void weigh(struct net *n, uint64_t l, struct range mine) {
    struct layer *layer = &n->layer[l];
    for (uint64_t row = mine.begin; row < mine.end; row++) {
        float *gradient = layer->gradient + row * layer->in;
        memset(gradient, 0, layer->in * sizeof *gradient);
        layer->bias_gradient[row] = 0.0f;
        for (uint64_t b = 0; b < n->batch; b++) {
            float slope = n->delta[l][b * layer->out + row];
            layer->bias_gradient[row] += slope;
            if (slope != 0.0f) {
                add_scaled(gradient, n->activation[l] + b * layer->in, slope, layer->in);
            }
        }
    }
}

/* Slopes by the inputs of layer l: a share of its columns, through all of its rows. */
static void pass_back(struct net *n, uint64_t l, struct range mine) {
    const struct layer *layer = &n->layer[l];
    for (uint64_t b = 0; b < n->batch; b++) {
        float *before = n->delta[l - 1] + b * layer->in;
        memset(before + mine.begin, 0, (mine.end - mine.begin) * sizeof *before);
    }
    for (uint64_t row = 0; row < layer->out; row++) {
        const float *weights = layer->weights + row * layer->in;
        for (uint64_t b = 0; b < n->batch; b++) {
            float slope = n->delta[l][b * layer->out + row];
            float *before = n->delta[l - 1] + b * layer->in;
            if (slope != 0.0f) {
                add_scaled(before + mine.begin, weights + mine.begin, slope, mine.end - mine.begin);
            }
        }
    }
    for (uint64_t b = 0; b < n->batch; b++) {
        for (uint64_t i = mine.begin; i < mine.end; i++) {
            if (n->activation[l][b * layer->in + i] <= 0.0f) {
                n->delta[l - 1][b * layer->in + i] = 0.0f;
            }
        }
    }
}

static void backward(struct member *member) {
    struct net *n = member->job;
    for (uint64_t l = n->layers; l-- > 0;) {
        weigh(n, l, my_share(member, n->layer[l].out));
        if (l > 0) {
            pass_back(n, l, my_share(member, n->layer[l].in));
        }
        wait_for_all(member);
    }
}

static void descend(struct member *member) {
    struct net *n = member->job;
    for (uint64_t l = 0; l < n->layers; l++) {
        struct layer *layer = &n->layer[l];
        struct range mine = my_share(member, layer->in * layer->out);
        for (uint64_t i = mine.begin; i < mine.end; i++) {
            layer->momentum[i] = MOMENTUM * layer->momentum[i] + layer->gradient[i];
            layer->weights[i] -= RATE * layer->momentum[i];
        }
        struct range rows = my_share(member, layer->out);
        for (uint64_t i = rows.begin; i < rows.end; i++) {
            layer->biases[i] -= RATE * layer->bias_gradient[i];
        }
    }
    wait_for_all(member);
}

/* Takes the examples of the batch and allocates what the step computes. */
static void open_step(struct net *n) {
    n->activation[0] = make_activation(n->batch * n->inputs * sizeof(float));
    for (uint64_t b = 0; b < n->batch; b++) {
        memcpy(n->activation[0] + b * n->inputs, n->inputs_of + n->chosen[b] * n->inputs,
               n->inputs * sizeof(float));
    }
    for (uint64_t l = 0; l < n->layers; l++) {
        uint64_t bytes = n->batch * n->layer[l].out * sizeof(float);
        n->activation[l + 1] = make_activation(bytes);
        n->delta[l] = make_delta(bytes);
    }
}

static void close_step(struct net *n) {
    give_back(n->activation[0], n->batch * n->inputs * sizeof(float));
    for (uint64_t l = 0; l < n->layers; l++) {
        uint64_t bytes = n->batch * n->layer[l].out * sizeof(float);
        give_back(n->activation[l + 1], bytes);
        give_back(n->delta[l], bytes);
    }
}

/* The batch that comes next by `state`. */
static void choose_batch(struct net *n, uint64_t *state) {
    for (uint64_t b = 0; b < n->batch; b++) {
        n->chosen[b] = random_below(state, n->examples);
    }
}

static void train_share(struct member *member) {
    struct net *n = member->job;
    for (uint64_t step = 0; step < n->steps; step++) {
        if (member->me == 0) {
            choose_batch(n, &n->state);
            open_step(n);
        }
        wait_for_all(member);
        forward(member);
        if (member->me == 0) {
            n->loss = loss_of(n);
        }
        wait_for_all(member);
        backward(member);
        descend(member);
        if (member->me == 0) {
            close_step(n);
        }
    }
}

/* The loss, as the network is now, of the batch that comes next by `state`. */
static double loss_now(struct net *n, uint64_t state) {
    choose_batch(n, &state);
    open_step(n);
    run_team(1, forward, n);
    double loss = loss_of(n);
    close_step(n);
    return loss;
}

/* Examples are their class's pattern with noise: what a network can learn. */
static void fill_examples(struct net *n) {
    uint64_t seed = options[SEED].value;
    for (uint64_t e = 0; e < n->examples; e++) {
        uint64_t state = seeded(seed, e), class = mix(e) % CLASSES, pattern = seeded(seed, ~class);
        n->class_of[e] = (uint8_t) class;
        for (uint64_t i = 0; i < n->inputs; i++) {
            float sign = next_random(&pattern) >> 63 ? 0.5f : -0.5f;
            n->inputs_of[e * n->inputs + i] = sign + (float)random_unit(&state) - 0.5f;
        }
    }
}

static void build(struct net *n) {
    n->inputs_of = make_examples(n->examples * n->inputs * sizeof(float));
    n->class_of = make_classes(n->examples);
    fill_examples(n);
    for (uint64_t l = 0; l < n->layers; l++) {
        struct layer *layer = &n->layer[l];
        uint64_t count = layer->in * layer->out;
        layer->weights = make_weights(count * sizeof(float));
        layer->biases = make_biases(layer->out * sizeof(float));
        layer->momentum = make_momentum(count * sizeof(float));
        layer->gradient = make_gradient(count * sizeof(float));
        layer->bias_gradient = make_gradient(layer->out * sizeof(float));
        memset(layer->biases, 0, layer->out * sizeof(float));
        memset(layer->momentum, 0, count * sizeof(float));
        memset(layer->gradient, 0, count * sizeof(float));
        /* He's initial weights, from a uniform distribution. */
        float reach = sqrtf(6.0f / (float)layer->in);
        for (uint64_t i = 0; i < count; i++) {
            layer->weights[i] = reach * (2.0f * (float)random_unit(&n->state) - 1.0f);
        }
    }
}

static void tear_down(struct net *n) {
    for (uint64_t l = 0; l < n->layers; l++) {
        struct layer *layer = &n->layer[l];
        uint64_t bytes = layer->in * layer->out * sizeof(float);
        give_back(layer->bias_gradient, layer->out * sizeof(float));
        give_back(layer->gradient, bytes);
        give_back(layer->momentum, bytes);
        give_back(layer->biases, layer->out * sizeof(float));
        give_back(layer->weights, bytes);
    }
    give_back(n->class_of, n->examples);
    give_back(n->inputs_of, n->examples * n->inputs * sizeof(float));
}

/* A network of a few dozen weights: each gradient is compared with differences of the loss. */
static bool gradients_are_right(void) {
    static struct net n;
    n = (struct net){.layers = 3, .batch = 5, .inputs = 6, .examples = 5, .state = 7};
    uint64_t widths[] = {6, 7, 5, CLASSES};
    for (uint64_t l = 0; l < n.layers; l++) {
        n.layer[l].in = widths[l];
        n.layer[l].out = widths[l + 1];
    }
    build(&n);
    uint64_t state = n.state;
    choose_batch(&n, &n.state);
    open_step(&n);
    run_team(1, forward, &n);
    loss_of(&n);
    run_team(1, backward, &n);
    close_step(&n);
    const float apart = 1e-2f;
    double sum = 0.0, off = 0.0;
    for (uint64_t l = 0; l < n.layers; l++) {
        for (uint64_t i = 0; i < n.layer[l].in * n.layer[l].out; i++) {
            float *weight = &n.layer[l].weights[i], kept = *weight;
            *weight = kept + apart;
            double above = loss_now(&n, state);
            *weight = kept - apart;
            double slope = (above - loss_now(&n, state)) / (2.0 * (double)apart);
            *weight = kept;
            sum += fabs(slope);
            off += fabs(slope - (double)n.layer[l].gradient[i]);
        }
    }
    tear_down(&n);
    return sum > 0.1 && off < 0.02 * sum;
}

/* 60% of the bytes are weights, momentum and gradients of layers that are as wide as they are deep.
 * The first layer has as many inputs; the last one yields the classes. */
static void lay_out(struct net *n, uint64_t bytes) {
    uint64_t width = (uint64_t)sqrt(0.6 * (double)bytes / (double)(12 * (n->layers - 1)));
    n->inputs = width;
    n->examples = width ? 2 * bytes / 5 / (width * sizeof(float)) : 0;
    for (uint64_t l = 0; l < n->layers; l++) {
        n->layer[l].in = width;
        n->layer[l].out = l + 1 < n->layers ? width : CLASSES;
    }
}

int main(int argc, char **argv) {
    read_options(argc, argv, options, sizeof options / sizeof *options);
    static struct net n;
    uint64_t threads = options[THREADS].value;
    n.layers = options[LAYERS].value;
    n.batch = options[BATCH].value;
    n.steps = options[STEPS].value;
    n.state = seeded(options[SEED].value, UINT64_MAX);
    if (n.layers < 2 || n.layers > LAYERS_MAX || n.batch == 0 || n.batch > BATCH_MAX ||
        n.steps == 0 || options[TOTAL_MIB].value == 0 || threads == 0 || threads > THREADS_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    bool right = gradients_are_right();
    lay_out(&n, options[TOTAL_MIB].value * MIB);
    if (n.examples < n.batch || n.examples > UINT32_MAX) {
        usage(argv[0], options, sizeof options / sizeof *options);
    }
    build(&n);
    uint64_t first = n.state;
    double before = loss_now(&n, first);
    uint64_t begun = region_begin();
    run_team(threads, train_share, &n);
    uint64_t took = region_end(begun), weights = 0;
    for (uint64_t l = 0; l < n.layers; l++) {
        weights += n.layer[l].in * n.layer[l].out;
    }
    for (uint64_t i = 0; options[CORRUPT].value && i < n.layer[0].in * n.layer[0].out; i += 5) {
        n.layer[0].weights[i] *= -40.0f;
    }
    double after = loss_now(&n, first);
    right &= after < before * (n.steps < FEW_STEPS ? 1.0 : LOSS_FALLS_TO);
    uint64_t operations = n.steps * weights * n.batch;
    struct outcome out = {"dnn", "weight-examples", operations, took, bits_of(after), right};
    tear_down(&n);
    return conclude(&out);
}
