/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * vmem_model_alone.c: a model of the moves of private memory (vmem/private.c), gone through in all
 * orders: one OS page that moves twice, while a thread writes it, one reads it, a device pins and
 * writes it, one thread waits for a futex in it, another wakes it, and the process forks.
 * In: nothing. Out: no order loses anything; with a step left out or in another place, some does.
 * Knows nothing of the code: the comments name the steps of private.c.
 *
 * Each actor is a list of atomic steps; a step that has to wait is not taken. States are visited
 * once, in a table.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define STATES_MAX (1u << 22) /* chosen: several times what any variant has */
#define MOVES 2
#define NOTHING (MOVES + 2)   /* what T shows while its OS page is out */
#define ZERO_PAGE (MOVES + 1) /* what the kernel gives to who touches nothing, unwatched */
#define PAGES (MOVES + 2)
#define BY_ADDRESS 0xff /* the key of a futex in private memory */

enum word { THREADS, DEVICES, FUTEX, WORDS };
enum actor { MOVER, WRITER, READER, DEVICE, WAITER, WAKER, FORKER, ACTORS };
enum holder { FREE, BY_MOVER, BY_FORK };

/* What is done wrong. */
struct variant {
    const char *name;
    bool is_unwatched;  /* step 2 is left out */
    bool is_unchecked;  /* step 3 takes pinned OS pages, too */
    bool copies_first;  /* step 4, with writes of threads held up, comes before 3 */
    bool copies_openly; /* the same, and they are not */
    bool is_file;       /* T becomes a memfd's memory: a futex's key is its place in there */
    bool is_unlocked;   /* forks do not wait for the lock */
};

struct state {
    uint8_t at[ACTORS]; /* the next step */
    uint8_t word[PAGES][WORDS];
    uint8_t shown, aside, moves; /* by T; by the area; finished */
    uint8_t is_watched, is_protected, holder;
    uint8_t pinned, seen, key, is_asleep, is_wrong;
};

static struct state table[STATES_MAX];
static uint8_t is_used[STATES_MAX];
static struct variant variant;
static uint64_t states, wrong;

/* ---- Steps; false: it waits ------------------------------------------------------------------ */

/* A touch of T. */
static bool touch(struct state *s) {
    if (s->shown != NOTHING)
        return true;
    if (s->is_watched)
        return false;
    memset(s->word[ZERO_PAGE], 0, WORDS);
    s->shown = ZERO_PAGE;
    return true;
}

static bool touch_to_write(struct state *s) {
    return !s->is_protected && touch(s);
}

static bool write_word(struct state *s, enum word word, uint8_t value) {
    if (!touch_to_write(s))
        return false;
    s->word[s->shown][word] = value;
    return true;
}

static void copy(struct state *s, uint8_t from) {
    if (from != NOTHING)
        memcpy(s->word[s->moves + 1], s->word[from], WORDS);
}

/* Step 3. False: refused. */
static bool take_out(struct state *s) {
    if (s->shown == NOTHING || (s->pinned == s->shown && !variant.is_unchecked))
        return false;
    s->aside = s->shown;
    s->shown = NOTHING;
    return true;
}

static bool step_mover(struct state *s, uint8_t at) {
    bool copies_early = variant.copies_first || variant.copies_openly;
    switch (at) {
    case 0: /* the lock */
        if (s->holder != FREE)
            return false;
        s->holder = BY_MOVER;
        return true;
    case 1: /* 2 */
        s->is_watched = !variant.is_unwatched;
        s->is_protected = variant.copies_first;
        return true;
    case 2:
        if (copies_early)
            copy(s, s->shown);
        return true;
    case 3: /* 3 */
        if (!take_out(s))
            s->at[MOVER] = 5; /* and to 6 */
        return true;
    case 4: /* 4 */
        if (!copies_early)
            copy(s, s->aside);
        return true;
    case 5: /* 5, which fails where something is */
        if (s->shown == NOTHING)
            s->shown = s->moves + 1;
        return true;
    case 6: /* 6 */
        s->is_watched = s->is_protected = 0;
        s->aside = NOTHING;
        s->holder = FREE;
        if (++s->moves < MOVES)
            s->at[MOVER] = 0xff; /* and to 0 */
        return true;
    }
    return false;
}

static bool step_device(struct state *s, uint8_t at) {
    switch (at) {
    case 0:
        if (!touch_to_write(s))
            return false;
        s->pinned = s->shown;
        return true;
    case 1:
        s->word[s->pinned][DEVICES] = 1;
        return true;
    case 2:
        s->pinned = NOTHING;
        return true;
    }
    return false;
}

static bool step_reader(struct state *s, uint8_t at) {
    if (at > 2 || !touch(s))
        return false;
    s->is_wrong |= s->word[s->shown][THREADS] < s->seen;
    s->seen = s->word[s->shown][THREADS];
    return true;
}

static uint8_t key(const struct state *s) {
    return variant.is_file ? s->shown : BY_ADDRESS;
}

/* As futex_wait: the key first, then the value and the queue in one step, under a lock that a waker
 * takes, too. A fault in between begins again. */
static bool step_waiter(struct state *s, uint8_t at) {
    switch (at) {
    case 0:
        if (!touch(s))
            return false;
        s->key = key(s);
        return true;
    case 1:
        if (s->shown == NOTHING)
            s->at[WAITER] = 0xff;
        else if (!s->word[s->shown][FUTEX])
            s->is_asleep = 1;
        return true;
    case 2:
        return !s->is_asleep;
    }
    return false;
}

static bool step_waker(struct state *s, uint8_t at) {
    if (at == 0)
        return write_word(s, FUTEX, 1);
    if (at != 1 || !touch(s))
        return false;
    s->is_asleep &= s->key != key(s);
    return true;
}

static bool step_forker(struct state *s, uint8_t at) {
    switch (at) {
    case 0:
        if (s->holder != FREE && !variant.is_unlocked)
            return false;
        if (!variant.is_unlocked)
            s->holder = BY_FORK;
        return true;
    case 1: /* the child has nothing where T shows nothing */
        s->is_wrong |= s->shown == NOTHING;
        return true;
    case 2:
        if (!variant.is_unlocked)
            s->holder = FREE;
        return true;
    }
    return false;
}

static bool step(struct state *s, enum actor actor) {
    uint8_t at = s->at[actor];
    bool is_taken = false;
    switch (actor) {
    case MOVER:
        is_taken = step_mover(s, at);
        break;
    case WRITER:
        is_taken = at < 2 && write_word(s, THREADS, at + 1);
        break;
    case READER:
        is_taken = step_reader(s, at);
        break;
    case DEVICE:
        is_taken = step_device(s, at);
        break;
    case WAITER:
        is_taken = step_waiter(s, at);
        break;
    case WAKER:
        is_taken = step_waker(s, at);
        break;
    case FORKER:
        is_taken = step_forker(s, at);
        break;
    case ACTORS:
        break;
    }
    s->at[actor] += is_taken;
    return is_taken;
}

/* ---- All orders ------------------------------------------------------------------------------ */

/* True when the state is new. */
static bool enter(const struct state *s) {
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */
    for (size_t i = 0; i < sizeof(*s); i++)
        hash = (hash ^ ((const uint8_t *)s)[i]) * 1099511628211ull;
    for (uint32_t at = (uint32_t)(hash >> 20) % STATES_MAX;; at = (at + 1) % STATES_MAX) {
        if (!is_used[at]) {
            is_used[at] = 1;
            table[at] = *s;
            return true;
        }
        if (!memcmp(&table[at], s, sizeof(*s)))
            return false;
    }
}

/* Nothing more can happen: each actor must be through, and each word there. */
static bool is_good_end(const struct state *s) {
    static const uint8_t last[ACTORS] = {7, 2, 3, 3, 3, 2, 3};
    return !memcmp(s->at, last, sizeof(last)) && s->shown != NOTHING &&
           s->word[s->shown][THREADS] == 2 && s->word[s->shown][DEVICES] == 1 &&
           s->word[s->shown][FUTEX] == 1;
}

static void explore(struct state s) {
    if (states >= STATES_MAX / 2 || !enter(&s))
        return;
    bool is_end = true;
    states++;
    for (enum actor actor = MOVER; actor < ACTORS; actor++) {
        struct state next = s;
        if (!step(&next, actor))
            continue;
        is_end = false;
        explore(next);
    }
    wrong += s.is_wrong || (is_end && !is_good_end(&s));
}

/* True when it is as expected. */
static bool check(struct variant how, bool is_right) {
    variant = how;
    states = wrong = 0;
    memset(is_used, 0, sizeof(is_used));
    explore((struct state){.aside = NOTHING, .pinned = NOTHING});
    bool is_complete = states < STATES_MAX / 2;
    printf("vmem_model, %s: %lu states, %lu wrong\n", how.name, states, wrong);
    return is_complete && (wrong == 0) == is_right;
}

int main(void) {
    static const struct variant faults[] = {
        {.name = "who touches what is out is not held up", .is_unwatched = true},
        {.name = "pins are not checked", .is_unchecked = true},
        {.name = "copied before pins are checked", .copies_first = true},
        {.name = "copied while threads write", .copies_openly = true},
        {.name = "moved to a file", .is_file = true},
        {.name = "forks do not wait", .is_unlocked = true},
    };
    bool is_good = check((struct variant){.name = "as it is"}, true);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
        is_good &= check(faults[i], false);
    return !is_good;
}
