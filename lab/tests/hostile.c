/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * hostile.c: a user who uses every known way to harm the other users of a daemon, all at once.
 * In: a socket's path, seconds, names of attacks or none for all. Out: `attack NAME ROUNDS` for
 * each. Knows nothing of how the daemon defends itself.
 *
 * Each attack has a process of its own, and goes on until the time is over.
 */
#define _GNU_SOURCE
#include "tenant.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define MIB (1ull << 20)
#define CONNECTIONS 70 /* more than one user may have greeted at a time */
#define CROWD 300      /* processes; chosen: more than a quarter of the places of a small daemon */
#define TABLE_PAGES (1ull << 18) /* objects of a full table: 4 MiB */
#define FLOOD_RINGS 32u          /* as many threads. Chosen */
#define HOURS_S 3600             /* how long a descriptor takes to close */
#define GUESSES 50u              /* numbers of other users' segments. Chosen */
#define MOVERS 6                 /* processes that never move what they are asked to. Chosen */

static const char *path;
static double end_s;

static bool is_over(void) {
    return now_s() >= end_s;
}

/* Writes a record like the runtime; waits for room. */
static void push(const struct tenant *tenant, struct tcl_record record) {
    struct tcl_ring *ring = ring_of(tenant, 0);
    header_of(tenant)->ring_high_water = 1;
    while (ring->head - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) >= TCL_RING_RECORDS &&
           !is_over())
        usleep(200);
    ring->records[ring->head % TCL_RING_RECORDS] = record;
    __atomic_store_n(&ring->head, ring->head + 1, __ATOMIC_RELEASE);
}

static struct tcl_record born(uint64_t addr, uint64_t bytes, uint32_t site) {
    return (struct tcl_record){.addr = addr,
                               .size = bytes | (uint64_t)TCL_ARENA_UNKNOWN << TCL_SIZE_BITS,
                               .site = site,
                               .carve = 1,
                               .kind = TCL_BORN};
}

/* A process that does one thing and stays until it is killed, or ends by itself. */
static pid_t start(void (*work)(void)) {
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGTERM, SIG_DFL);
        work();
        _exit(0);
    }
    return child;
}

/* ---- Greetings ------------------------------------------------------------------------------- */

/* Connections that owe their hello; new ones for those that are closed. */
static long silent_connections(void) {
    int fds[CONNECTIONS];
    long rounds = 0;
    for (int i = 0; i < CONNECTIONS; i++)
        fds[i] = connect_to(path);
    while (!is_over()) {
        for (int i = 0; i < CONNECTIONS; i++) {
            struct pollfd closed = {fds[i], POLLIN, 0};
            if (fds[i] >= 0 && poll(&closed, 1, 0) == 0)
                continue;
            close(fds[i]);
            fds[i] = connect_to(path);
            rounds++;
        }
        usleep(2000);
    }
    return rounds;
}

/* A TCP socket with unsent bytes whose last close takes hours, and what keeps it so. */
static int lingering(int *listener, int *other_end) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    struct linger linger = {1, HOURS_S};
    static char bytes[65536];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(*listener, (void *)&address, length) || listen(*listener, 1) ||
        getsockname(*listener, (void *)&address, &length) || connect(fd, (void *)&address, length))
        return -1;
    *other_end = accept(*listener, NULL, NULL);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0)
        ;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    return fd;
}

/* As the memfd, and as one of too many descriptors. It is closed here at once, so that the last
 * close is the daemon's; if it is not, this process waits. */
static void send_lingering(void) {
    struct tenant tenant = make_tenant(0);
    int listener = -1, other_end = -1, slow = lingering(&listener, &other_end);
    int fds[] = {slow, tenant.memfd, slow, slow};
    struct tcl_hello hello = hello_of(1, tenant.bytes);
    for (int i = 0; slow >= 0 && i < 2; i++) {
        int fd = connect_to(path);
        say(fd, &hello, sizeof(hello), fds + i, 3);
        close(fd);
    }
    close(slow);
    pause();
}

static long lingering_descriptors(void) {
    long rounds = 0;
    for (; !is_over(); rounds++) {
        pid_t child = start(send_lingering);
        usleep(50000);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return rounds;
}

/* Bytes and descriptors of all kinds. */
static long garbage(void) {
    int ends[2],
        kinds[] = {open("/dev/null", O_RDWR),  open("/", O_RDONLY), open("/", O_PATH), -1, -1,
                   memfd_create("unsealed", 0)};
    unsigned seed = 1;
    long rounds = 0;
    if (pipe(ends))
        return 0;
    kinds[3] = ends[0];
    kinds[4] = ends[1];
    for (; !is_over(); rounds++) {
        struct tcl_hello hello = hello_of(1, ~0ull);
        unsigned char *bytes = (void *)&hello;
        seed = seed * 1664525u + 1013904223u;
        bytes[seed >> 27 & 15] ^= (unsigned char)(seed >> 8);
        int fd = connect_to(path);
        size_t count = seed >> 16 & 1 ? sizeof(hello) : seed >> 20 & 15;
        say(fd, bytes, count, kinds + (seed >> 24) % 3, 4);
        await_welcome(fd);
        close(fd);
    }
    return rounds;
}

static int inherited;

static void hello_for_parent(void) {
    struct tenant tenant = make_tenant(0);
    say_hello(inherited, &tenant);
    await_welcome(inherited);
}

/* A child says the hello of its parent, and of a process that has ended. */
static long stale_connections(void) {
    long rounds = 0;
    for (; !is_over(); rounds++) {
        inherited = connect_to(path);
        if (rounds % 2) {
            waitpid(start(hello_for_parent), NULL, 0);
        } else if (fork() == 0) {
            inherited = connect_to(path);
            start(hello_for_parent);
            _exit(0);
        } else {
            wait(NULL);
        }
        close(inherited);
    }
    return rounds;
}

static void stay_attached(void) {
    struct tenant tenant = make_tenant(1024);
    attach(path, &tenant);
    while (!is_over())
        usleep(100000);
}

/* As many processes as there are places. */
static long crowd(void) {
    long rounds = 0;
    while (!is_over()) {
        for (int i = 0; i < CROWD && !is_over(); i++)
            start(stay_attached);
        for (int i = 0; i < CROWD; i++) /* all end with the time, or are killed below */
            usleep(1000);
        signal(SIGTERM, SIG_IGN);
        kill(0, SIGTERM);
        while (waitpid(-1, NULL, 0) > 0)
            rounds++;
    }
    return rounds;
}

/* ---- Sessions -------------------------------------------------------------------------------- */

/* A full object table, hello after hello: each makes the daemon read it. */
static long full_tables(void) {
    struct tenant tenant = make_tenant(TABLE_PAGES);
    struct tcl_run *runs = (void *)(tenant.base + TCL_RUNS_AT);
    long rounds = 0;
    for (uint64_t i = 0; i < TABLE_PAGES; i++)
        runs[i] = (struct tcl_run){.shape = 1ull << 32 | 1, .identity = (i % 65535) << 32};
    header_of(&tenant)->run_high_water = TABLE_PAGES;
    for (; !is_over(); rounds++)
        attach(path, &tenant);
    return rounds;
}

/* Records each of which costs the daemon a look at the process. */
static long exec_flood(void) {
    struct tenant tenant = make_tenant(0);
    long rounds = 0;
    attach(path, &tenant);
    header_of(&tenant)->ring_high_water = FLOOD_RINGS;
    for (uint32_t i = 0; i < FLOOD_RINGS * TCL_RING_RECORDS; i++)
        ring_of(&tenant, i / TCL_RING_RECORDS)->records[i % TCL_RING_RECORDS].kind = TCL_EXEC;
    for (; !is_over(); rounds++) {
        for (uint32_t i = 0; i < FLOOD_RINGS; i++) {
            struct tcl_ring *ring = ring_of(&tenant, i);
            uint64_t tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
            __atomic_store_n(&ring->head, tail + TCL_RING_RECORDS, __ATOMIC_RELEASE);
        }
        usleep(1000);
    }
    return rounds;
}

static void fill_sites(const struct tenant *tenant) {
    struct tcl_site *sites = (void *)(tenant->base + TCL_SITES_AT);
    struct tcl_module *modules = (void *)(tenant->base + TCL_MODULES_AT);
    static const char name[] = "/home/fran\xe7ois/\xe2\x80\xae\x1b[2J";
    for (uint32_t i = 0; i < 64; i++) {
        modules[i].base = i;
        modules[i].path_bytes = sizeof(name) - 1;
        memcpy(modules[i].path, name, sizeof(name) - 1);
        modules[i].published = 1;
    }
    for (uint32_t i = 1; i < TCL_SITES_MAX; i++) {
        sites[i].hash = (uint64_t)getpid() << 32 | i;
        sites[i].frame_count = 20;
        for (uint64_t frame = 0; frame < 20; frame++)
            sites[i].frames[frame] = frame << 48 | (i * 64 + frame);
        sites[i].published = 1;
    }
    header_of(tenant)->module_count = 64;
    header_of(tenant)->site_count = TCL_SITES_MAX;
}

/* Objects of as many sites as fit, again and again in new processes. */
static void flood_sites(void) {
    struct tenant tenant = make_tenant(0);
    fill_sites(&tenant);
    attach(path, &tenant);
    for (uint32_t i = 1; i < TCL_SITES_MAX && !is_over(); i++) {
        struct tcl_record died = born(0x7f0000000000, 4096, i);
        push(&tenant, died);
        died.kind = TCL_DIED;
        push(&tenant, died);
    }
}

static long site_floods(void) {
    long rounds = 0;
    for (; !is_over(); rounds++)
        waitpid(start(flood_sites), NULL, 0);
    return rounds;
}

/* Heads without records: to read them is to fill the memory. */
static void make_holes(void) {
    struct tenant tenant = make_tenant(0);
    attach(path, &tenant);
    for (uint32_t i = 0; i < TCL_RINGS_MAX; i++)
        ring_of(&tenant, i)->head = TCL_RING_RECORDS;
    header_of(&tenant)->ring_high_water = TCL_RINGS_MAX;
    for (int i = 0; i < 20 && !is_over(); i++)
        usleep(50000);
}

static long ring_holes(void) {
    long rounds = 0;
    for (; !is_over(); rounds++)
        waitpid(start(make_holes), NULL, 0);
    return rounds;
}

/* Sizes, addresses and versions at and beyond their ends. */
static long forged_records(void) {
    struct tenant tenant = make_tenant(0);
    long rounds = 0;
    attach(path, &tenant);
    for (; !is_over(); rounds++) {
        uint32_t i = (uint32_t)rounds;
        struct tcl_record record = born(4096ull * (1 + i % 3000), (1ull << 56) - 4096, i % 7);
        record.carve = i * 0x7fffffffu;
        record.generation = (uint16_t)(i * 40000u);
        record.kind = (uint8_t)(i % 9);
        push(&tenant, record);
    }
    return rounds;
}

/* Says that it moves its memory itself, and never does. */
static void never_move(void) {
    char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct tenant tenant = make_tenant(0);
    header_of(&tenant)->is_mover = 1;
    attach(path, &tenant);
    push(&tenant, born((uintptr_t)memory, 8 * MIB, 0));
    while (!is_over()) {
        memset(memory, 1, 8 * MIB);
        usleep(1000);
    }
}

static long silent_movers(void) {
    for (int i = 0; i < MOVERS; i++)
        start(never_move);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    return MOVERS;
}

/* ---- Pools ----------------------------------------------------------------------------------- */

static const struct tcl_pool_ask segment = {.verb = TCL_POOL_GRANT, .bytes = 64 * MIB};

/* Takes all of a pool again and again; keeps and fills what it has returned. */
static long pool_hogging(void) {
    long rounds = 0;
    for (; !is_over(); rounds++) {
        int memfd, none;
        struct tcl_pool_answer granted = ask_pool(path, segment, &memfd);
        if (memfd < 0) {
            usleep(10000);
            continue;
        }
        char *at = mmap(NULL, segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        struct tcl_pool_ask give = {.verb = TCL_POOL_RETURN, .number = granted.number};
        give.secret = granted.secret;
        ask_pool(path, give, &none);
        if (at != MAP_FAILED) {
            memset(at, 'h', segment.bytes);
            munmap(at, segment.bytes);
        }
        close(memfd);
    }
    return rounds;
}

/* Opens a segment again and again, to meet the daemon's lease; and only for reading, to hold it
 * unseen. */
static long leases(void) {
    long rounds = 0;
    while (!is_over()) {
        int memfd;
        struct tcl_pool_ask small = {.verb = TCL_POOL_GRANT, .bytes = 2 * MIB};
        ask_pool(path, small, &memfd);
        if (memfd < 0) {
            usleep(10000);
            continue;
        }
        char name[64];
        snprintf(name, sizeof(name), "/proc/self/fd/%d", memfd);
        int seen = open(name, O_RDONLY | O_CLOEXEC), path_only = open(name, O_PATH | O_CLOEXEC);
        close(memfd);
        snprintf(name, sizeof(name), "/proc/self/fd/%d", path_only);
        for (double end = now_s() + 0.3; now_s() < end; rounds++) {
            int again = open(name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
            if (again >= 0)
                close(again);
        }
        close(seen);
        close(path_only);
    }
    return rounds;
}

/* Returns segments of others by their numbers; exits with 1 when one is accepted. */
static long guessed_returns(void) {
    long rounds = 0;
    for (; !is_over(); rounds++) {
        struct tcl_pool_ask guess = {.verb = rounds % 2 ? TCL_POOL_RETURN : TCL_POOL_LEAVE,
                                     .number = (uint32_t)rounds % GUESSES};
        int none;
        if (ask_pool(path, guess, &none).status == TCL_POOL_OK) {
            printf("attack guessed-returns succeeded\n");
            fflush(stdout);
        }
        usleep(1000);
    }
    return rounds;
}

/* ---- All ------------------------------------------------------------------------------------- */

static const struct attack {
    const char *name;
    long (*run)(void);
} attacks[] = {
    {"silent-connections", silent_connections},
    {"lingering-descriptors", lingering_descriptors},
    {"garbage", garbage},
    {"stale-connections", stale_connections},
    {"crowd", crowd},
    {"full-tables", full_tables},
    {"exec-flood", exec_flood},
    {"site-floods", site_floods},
    {"ring-holes", ring_holes},
    {"forged-records", forged_records},
    {"silent-movers", silent_movers},
    {"pool-hogging", pool_hogging},
    {"leases", leases},
    {"guessed-returns", guessed_returns},
};
#define ATTACKS ((int)(sizeof(attacks) / sizeof(*attacks)))

static bool is_wanted(const char *name, int count, char **names) {
    bool is_so = count == 0;
    for (int i = 0; i < count; i++)
        is_so |= !strcmp(names[i], name);
    return is_so;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fputs("usage: hostile SOCKET SECONDS [ATTACK...]\n", stderr);
        return 2;
    }
    path = argv[1];
    end_s = now_s() + atof(argv[2]);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < ATTACKS; i++) {
        if (!is_wanted(attacks[i].name, argc - 3, argv + 3) || fork())
            continue;
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        printf("attack %s %ld\n", attacks[i].name, attacks[i].run());
        fflush(stdout);
        signal(SIGTERM, SIG_IGN);
        kill(0, SIGTERM);
        _exit(0);
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}
