// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* sample.bpf.c: passes sampled memory accesses of tracked processes to the daemon (MAT 3.3).
 * In: perf events of any kind, machine-wide; the map of tracked processes. Out: a BPF ring buffer.
 * Knows nothing of objects, periods or what an event means: its cookie identifies it.
 *
 *   PMU overflow -> on_event -> tracked? -> ring buffer -> crates/sampler/src/bpf
 *
 * Self-contained: the few helpers it calls are declared here by their stable numbers, so that
 * neither vmlinux.h nor libbpf's headers are needed to compile it. The licence line offers the GPL
 * because the kernel lets only GPL programs call kfuncs.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define RELOCATED __attribute__((preserve_access_index))

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static __u64 (*const current_pid_tgid)(void) = (void *)BPF_FUNC_get_current_pid_tgid;
static __u64 (*const attach_cookie)(void *ctx) = (void *)BPF_FUNC_get_attach_cookie;
static __u64 (*const monotonic_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*const current_cpu)(void) = (void *)BPF_FUNC_get_smp_processor_id;
static void *(*const ring_reserve)(void *ring, __u64 bytes, __u64 flags) =
    (void *)BPF_FUNC_ringbuf_reserve;
static void (*const ring_submit)(void *data, __u64 flags) = (void *)BPF_FUNC_ringbuf_submit;

/* Mirrored by `Event` in crates/sampler/src/bpf/mod.rs. */
struct event {
    __u64 time_ns; /* CLOCK_MONOTONIC */
    __u64 addr;
    __u64 data_src; /* 0 where the kernel does not show it */
    __u64 weight;   /* cycles, likewise */
    __u32 pid;
    __u32 tid;
    __u64 cookie; /* which event */
    __u32 cpu;
    __u32 unused;
};
_Static_assert(sizeof(struct event) == 56, "event");

/* Processes; one daemon serves a whole machine, as in MAT. Twice 32768, the default of
 * kernel.pid_max (Documentation/admin-guide/sysctl/kernel.rst). */
#define TRACKED_MAX 65536
#define RING_BYTES (1 << 20) /* a default; the loader sets the configured size */

struct {
    int (*type)[BPF_MAP_TYPE_HASH];
    int (*max_entries)[TRACKED_MAX];
    __u32 *key;
    __u8 *value;
} tracked SEC(".maps");

struct {
    int (*type)[BPF_MAP_TYPE_RINGBUF];
    int (*max_entries)[RING_BYTES];
} events SEC(".maps");

/* Element 0: events of tracked processes that found the ring full. */
struct {
    int (*type)[BPF_MAP_TYPE_ARRAY];
    int (*max_entries)[1];
    __u32 *key;
    __u64 *value;
} lost SEC(".maps");

/* The kernel's structures behind the context; relocation adapts the offsets to each kernel. */
union perf_sample_weight {
    __u64 full;
} RELOCATED;

union perf_mem_data_src {
    __u64 val;
} RELOCATED;

struct perf_sample_data {
    union perf_sample_weight weight;
    union perf_mem_data_src data_src;
} RELOCATED;

struct bpf_perf_event_data_kern {
    struct perf_sample_data *data;
} RELOCATED;

/* Since Linux 6.2; without it there is neither latency nor data source. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __attribute__((section(".ksyms"), weak));

/* struct bpf_perf_event_data begins with bpf_user_pt_regs_t (asm/bpf_perf_event.h): x86 pt_regs has
 * 21 words of 8 bytes, arm64's user_pt_regs 34. */
#if defined(__TARGET_ARCH_x86)
#define REGISTERS_BYTES 168
#elif defined(__TARGET_ARCH_arm64)
#define REGISTERS_BYTES 272
#else
#error "no layout of struct bpf_perf_event_data for this processor"
#endif
struct context {
    __u8 registers[REGISTERS_BYTES];
    __u64 period;
    __u64 addr;
};

SEC("perf_event")
int on_event(struct context *ctx)
{
    __u64 task = current_pid_tgid();
    __u32 pid = task >> 32;
    if (!map_lookup(&tracked, &pid))
        return 0;
    struct event *event = ring_reserve(&events, sizeof(*event), 0);
    if (!event) {
        __u32 zero = 0;
        __u64 *count = map_lookup(&lost, &zero);
        if (count)
            __sync_fetch_and_add(count, 1);
        return 0;
    }
    event->time_ns = monotonic_ns();
    event->addr = ctx->addr;
    event->pid = pid;
    event->tid = (__u32)task;
    event->cookie = attach_cookie(ctx);
    event->cpu = current_cpu();
    event->unused = 0;
    event->data_src = 0;
    event->weight = 0;
    if (bpf_cast_to_kern_ctx) {
        struct bpf_perf_event_data_kern *kernel = bpf_cast_to_kern_ctx(ctx);
        event->data_src = kernel->data->data_src.val;
        event->weight = kernel->data->weight.full;
    }
    ring_submit(event, BPF_RB_NO_WAKEUP);
    return 0;
}

char licence[] SEC("license") = "Dual MIT/GPL";
