/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * tiercel_emulator.h: memory shared by a timed guest's emulator and the sampler in the guest.
 * In: nothing. Out: the layout of the sample area. crates/wire mirrors this file and a test
 * compares every size and offset. Knows nothing of QEMU, PCI or how accesses are timed.
 *
 *   emulator (outside)                             sampler (inside the guest)
 *   ------------------                             --------------------------
 *   maps the file behind the guest's device        maps BAR 2 of ivshmem-plain
 *   writes header, clock, records        =======>  checks the header, drains the rings
 *   reads the guest's words, clamps them <=======  writes owner, period, where a task's
 *                                                  numbers are
 *
 * One ring of records for each virtual CPU, with the protocol of the session's rings: the producer
 * owns head and lost, the consumer tail; a full ring loses records and counts them. All fields are
 * little endian and accessed as atomic words. Neither side trusts what the other wrote.
 */
#ifndef TIERCEL_EMULATOR_H
#define TIERCEL_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

/* "TCLE", little endian. */
#define TCLE_MAGIC UINT64_C(0x454c4354)
#define TCLE_VERSION UINT64_C(3)

/* Bytes of the area: 16 rings of 4 KiB + 4096 * 64 bytes are 4.1 MiB, and a PCI BAR has a power of
 * two. */
#define TCLE_AREA_BYTES (UINT64_C(8) << 20)
/* Chosen, not measured. */
#define TCLE_VCPUS_MAX 16
/* A power of two; 256 KiB a ring. Chosen, not measured. */
#define TCLE_RING_RECORDS 4096
/* Misses per sample, at most. Chosen, not measured: far above every useful period, and it fits the
 * 32 bits of a weight. */
#define TCLE_PERIOD_MAX (UINT64_C(1) << 24)

/* First OS page of the area. */
struct tcle_control {
    /* Written by the emulator; magic last. */
    uint64_t magic;
    uint64_t version;
    uint64_t vcpus;
    uint64_t clock_ns; /* guest time of the latest update */
    uint64_t to_owner[4];

    /* Written by the sampler. */
    uint64_t owner;      /* its process; 0: no sampler is running */
    uint64_t period;     /* misses per sample, clamped to 1 .. TCLE_PERIOD_MAX; 0: off */
    uint64_t current_at; /* offset of the running task's address from a CPU's own kernel data */
    uint64_t task_at;    /* offsets in a task: of its thread's number in the low 32 bits, of its
                            process's number in the high */
    uint64_t wants;      /* TCLE_WANTS_DIRTIED, or 0 */
    uint64_t origin_ns;  /* guest time at which the sampler's clock was 0; 0: not stated */
};

/* Also report lines that become dirty, sampled as misses are. */
#define TCLE_WANTS_DIRTIED UINT64_C(1)

/* The last TCLE_BLOCKS blocks of TCLE_BLOCK_BYTES that had misses are remembered, to see which
 * misses lie apart from others. 4 cache lines, and as many blocks as a CPU can plausibly stream.
 * Chosen, not measured. */
#define TCLE_BLOCK_BYTES 256
#define TCLE_BLOCKS 64

enum tcle_kind {
    TCLE_COUNT = 1, /* only its counts are valid */
    TCLE_READ = 2,
    TCLE_WRITE = 3,
    TCLE_DIRTIED = 4, /* a store to a line that was clean in all caches: one write-back follows */
};

/* Flags of a miss. */
enum tcle_flag {
    TCLE_APART = 1, /* its block is none of the last TCLE_BLOCKS that had misses */
};

/* One sampled miss of the last level by user code, a line that became dirty, or counts. */
struct tcle_record {
    uint64_t time_ns;     /* guest time, the clock of clock_ns */
    uint64_t address;     /* virtual */
    uint64_t physical;    /* as the guest's kernel sees it */
    uint64_t instruction; /* virtual address of the instruction */
    uint32_t process;
    uint32_t thread;     /* 0: not known */
    uint32_t latency_ns; /* from the address being known to the data; 0 of a dirtied line */
    uint32_t weight;     /* misses or dirtied lines that it represents; 0 for a count */
    uint16_t node;       /* the guest kernel's number of the node that served it */
    uint8_t kind;        /* enum tcle_kind */
    uint8_t flags;       /* enum tcle_flag */
    uint16_t at_once;    /* mean of outstanding misses over the 64 misses before, while there were
                            any, in hundredths; 0: not known */
    uint8_t zero[2];
    uint32_t misses;       /* of this process on this virtual CPU since the previous record */
    uint32_t instructions; /* likewise, in user mode */
};

struct tcle_ring {
    uint64_t head; /* records written */
    uint64_t lost; /* records that found no room */
    uint64_t to_tail[6];
    uint64_t tail; /* records read */
    uint64_t to_records[503];
    struct tcle_record records[TCLE_RING_RECORDS];
};

struct tcle_area {
    struct tcle_control control;
    uint8_t to_rings[4096 - sizeof(struct tcle_control)];
    struct tcle_ring rings[TCLE_VCPUS_MAX];
};

_Static_assert(sizeof(struct tcle_record) == 64, "a record fills a cache line");
_Static_assert(sizeof(struct tcle_area) <= TCLE_AREA_BYTES, "all rings fit");

#endif
