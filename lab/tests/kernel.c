// What the samplers and movers stand on, asked of the guest's kernel directly.
// In: nothing. Out: `ok WHAT` or `not ok WHAT: WHY` for each. Knows nothing of Tiercel.
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OS_PAGES = 256, MPOL_MF_MOVE_FLAG = 2, MAX_NODES = 64 };

// From Linux 6.7 and 6.1; the host's headers may be older.
#define FEATURE_WP_ASYNC (1ull << 15)
#define FEATURE_WP_UNPOPULATED (1ull << 13)
struct scan_region {
    uint64_t start, end, categories;
};
struct scan_argument {
    uint64_t size, flags, start, end, walk_end, regions, regions_length, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN _IOWR('f', 16, struct scan_argument)
enum { SCAN_WP_MATCHING = 1, SCAN_CHECK_WPASYNC = 2, PAGE_WRITTEN = 2 };

static void verdict(const char *what, int good) {
    if (good) {
        printf("ok %s\n", what);
    } else {
        printf("not ok %s: %s\n", what, strerror(errno));
    }
}

static char *region(void) {
    char *start = mmap(NULL, OS_PAGES * 4096, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(start, OS_PAGES * 4096, MADV_NOHUGEPAGE);
    memset(start, 1, OS_PAGES * 4096);
    return start;
}

// Arms write protection, writes two OS pages, and expects exactly these two back.
static void write_tracking(void) {
    char *start = region();
    const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API,
                             .features = FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED};
    verdict("userfaultfd has asynchronous write protection", ioctl(fd, UFFDIO_API, &api) == 0);
    struct uffdio_register registration = {
        .range = {.start = (uint64_t)start, .len = OS_PAGES * 4096},
        .mode = UFFDIO_REGISTER_MODE_WP};
    verdict("it takes anonymous memory", ioctl(fd, UFFDIO_REGISTER, &registration) == 0);
    const int pagemap = open("/proc/self/pagemap", O_RDONLY);
    struct scan_region found[OS_PAGES];
    struct scan_argument scan = {.size = sizeof scan,
                                 .flags = SCAN_WP_MATCHING | SCAN_CHECK_WPASYNC,
                                 .start = (uint64_t)start,
                                 .end = (uint64_t)start + OS_PAGES * 4096,
                                 .regions = (uint64_t)found,
                                 .regions_length = OS_PAGES,
                                 .category_mask = PAGE_WRITTEN,
                                 .return_mask = PAGE_WRITTEN};
    verdict("PAGEMAP_SCAN arms it", ioctl(pagemap, SCAN, &scan) >= 0);
    start[3 * 4096] = 2;
    start[200 * 4096] = 2;
    const int regions = ioctl(pagemap, SCAN, &scan);
    verdict("PAGEMAP_SCAN finds exactly the OS pages written since",
            regions == 2 && found[0].start == (uint64_t)start + 3 * 4096 &&
                found[1].start == (uint64_t)start + 200 * 4096);
    close(pagemap);
    close(fd);
}

static void software_events(void) {
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE,
                                   .size = sizeof attr,
                                   .config = PERF_COUNT_SW_PAGE_FAULTS,
                                   .sample_period = 1,
                                   .sample_type = PERF_SAMPLE_ADDR | PERF_SAMPLE_TID,
                                   .exclude_kernel = 1};
    const int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
    verdict("perf counts page faults with addresses", fd >= 0);
    uint64_t before = 0, after = 0;
    int good = read(fd, &before, sizeof before) == sizeof before;
    region();
    good = good && read(fd, &after, sizeof after) == sizeof after;
    verdict("every first touch is one", good && after - before >= OS_PAGES);
    close(fd);
}

// Sends the region to every node with memory in turn and reads it back there.
static void moves(void) {
    char *start = region();
    uint64_t seed = 1;
    for (size_t i = 0; i < OS_PAGES * 4096; i++) {
        start[i] = (char)(seed = seed * 6364136223846793005ull + 1);
    }
    void *pages[OS_PAGES];
    int targets[OS_PAGES], status[OS_PAGES], visited = 0, good = 1;
    for (int node = 0; node < MAX_NODES; node++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
        if (access(path, F_OK) != 0) {
            continue;
        }
        for (int i = 0; i < OS_PAGES; i++) {
            pages[i] = start + i * 4096;
            targets[i] = node;
        }
        good = good && syscall(SYS_move_pages, 0, (long)OS_PAGES, pages, targets, status,
                               MPOL_MF_MOVE_FLAG) == 0;
        good = good && syscall(SYS_move_pages, 0, (long)OS_PAGES, pages, NULL, status, 0) == 0;
        for (int i = 0; i < OS_PAGES; i++) {
            good = good && status[i] == node;
        }
        visited++;
    }
    verdict("move_pages reaches every node", good && visited > 1);
    seed = 1;
    for (size_t i = 0; i < OS_PAGES * 4096; i++) {
        good = good && start[i] == (char)(seed = seed * 6364136223846793005ull + 1);
    }
    verdict("and no byte is lost on the way", good);
}

int main(void) {
    write_tracking();
    software_events();
    moves();
    verdict("the kernel describes its types (BTF)", access("/sys/kernel/btf/vmlinux", R_OK) == 0);
    verdict("DAMON has its control files", access("/sys/kernel/mm/damon/admin", R_OK) == 0);
    return 0;
}
