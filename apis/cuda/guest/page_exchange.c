/* Pages of the application's private memory become pages of the arena at the same addresses, and private ones again: contents stay,
 * and whoever writes meanwhile waits. A userfaultfd stops writers, because nothing else does so without a moment in which a write is
 * lost; without one nothing is exchanged.
 *
 * Between the protection of a piece and its exchange this thread must not write into it: nothing here allocates, logs or calls the
 * runtime then, and signals wait. */
#include "guest/registered_memory.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* PIECE_BYTES: exchanged at a time, so much is there twice; a multiple of a page. MOST_RUNS: pages that are mapped in more parts stay
 * the arena's. LINE_BYTES: of /proc/self/maps, with the longest path. */
enum { PAGE = 4096, PIECE_BYTES = 2 << 20, MOST_RUNS = 256, LINE_BYTES = 4608 };
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
/* Linux 5.19 and 6.4; headers may be older. */
#define FEATURE_SHARED ((uint64_t)1 << 12)
#define FEATURE_UNPOPULATED ((uint64_t)1 << 13)
#define ADVICE_POPULATE_READ 22

/* ---- Writers wait ---------------------------------------------------------------------------- */

static int ask_features(int guard, uint64_t features) {
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    return ioctl(guard, UFFDIO_API, &api) == 0;
}

/* -1: the kernel has none, or not for this process. Without privileges a system call of another thread that writes into the memory
 * while it is exchanged fails with EFAULT; with them it waits. */
static int open_guard(void) {
    int guard = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (guard < 0)
        guard = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    const uint64_t needed = UFFD_FEATURE_PAGEFAULT_FLAG_WP | FEATURE_SHARED;
    if (guard >= 0 && !ask_features(guard, needed | FEATURE_UNPOPULATED) && !ask_features(guard, needed)) {
        close(guard);
        guard = -1;
    }
    return guard;
}

static int watch(int guard, char *at, size_t bytes) {
    struct uffdio_register range = {.range = {(uintptr_t)at, bytes}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(guard, UFFDIO_REGISTER, &range) == 0 && (range.ioctls & ((uint64_t)1 << _UFFDIO_WRITEPROTECT));
}

/* Also pages that are not there yet: a kernel that cannot protect these has them read first. */
static int protect(int guard, char *at, size_t bytes) {
    struct uffdio_writeprotect range = {.range = {(uintptr_t)at, bytes}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    return madvise(at, bytes, ADVICE_POPULATE_READ) == 0 && ioctl(guard, UFFDIO_WRITEPROTECT, &range) == 0;
}

/* Who waits looks again: at the new pages, which are not protected. */
static void wake(int guard, char *at, size_t bytes) {
    struct uffdio_range range = {(uintptr_t)at, bytes};
    ioctl(guard, UFFDIO_WAKE, &range);
}

/* ---- What is mapped -------------------------------------------------------------------------- */

struct mapping {
    uintptr_t start, end;
    char permissions[5];
    uint64_t offset, inode;
    unsigned int major, minor;
    char name[16];
};

static int next_mapping(FILE *maps, struct mapping *m) {
    char line[LINE_BYTES];
    unsigned long long start, end, offset, inode;
    m->name[0] = 0;
    if (!fgets(line, sizeof line, maps)
        || sscanf(line, "%llx-%llx %4s %llx %x:%x %llu %15s", &start, &end, m->permissions, &offset, &m->major, &m->minor, &inode, m->name) < 7)
        return 0;
    m->start = start;
    m->end = end;
    m->offset = offset;
    m->inode = inode;
    return 1;
}

/* True if all of it is readable and writable private memory of no file, and no stack that is in use here: [stack] and the calling
 * thread's own, which could not wait for itself. */
int cuda_pages_are_private(uintptr_t base, size_t bytes) {
    struct mapping m;
    uintptr_t at = base, end = base + bytes, here = (uintptr_t)&m;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return 0;
    while (at < end && next_mapping(maps, &m) && m.start <= at) {
        if (m.end <= at)
            continue;
        if (strcmp(m.permissions, "rw-p") != 0 || m.inode || strcmp(m.name, "[stack]") == 0 || (here >= m.start && here < m.end))
            break;
        at = m.end;
    }
    fclose(maps);
    return at >= end;
}

static int find_mapping(const char *address, struct mapping *found) {
    FILE *maps = fopen("/proc/self/maps", "re");
    int known = 0;
    while (maps && !known && next_mapping(maps, found))
        known = (uintptr_t)address >= found->start && (uintptr_t)address < found->end;
    if (maps)
        fclose(maps);
    return known;
}

/* One mapping of the arena's file, as far as it shows the pages from `first` of the file on. */
static void add_run(const struct mapping *m, uint64_t first, const char *at, const char *arena, size_t bytes, struct cuda_page_runs *found) {
    uint64_t start = m->offset > first ? m->offset : first, last = m->offset + (m->end - m->start);
    uint64_t end = last < first + bytes ? last : first + bytes;
    if (start >= end)
        return;
    uintptr_t address = m->start + (start - m->offset);
    if (address == (uintptr_t)arena + (start - first))
        return;
    if (address != (uintptr_t)at + (start - first) || strcmp(m->permissions, "rw-s") != 0 || found->count == MOST_RUNS)
        found->elsewhere = 1;
    else
        found->runs[found->count++] = (struct cuda_page_run){start - first, end - start};
}

/* What of the pages at `at` still is the arena's of `arena`: the program may have unmapped it and mapped other memory there. The runs
 * are the caller's to free. 0: it cannot be found out. */
int cuda_find_page_runs(const char *at, const char *arena, size_t bytes, struct cuda_page_runs *found) {
    struct mapping own, m;
    *found = (struct cuda_page_runs){0};
    if (!find_mapping(arena, &own) || !own.inode)
        return 0;
    uint64_t first = own.offset + ((uintptr_t)arena - own.start);
    FILE *maps = fopen("/proc/self/maps", "re");
    found->runs = calloc(MOST_RUNS, sizeof *found->runs);
    if (!maps || !found->runs) {
        if (maps)
            fclose(maps);
        free(found->runs);
        found->runs = NULL;
        return 0;
    }
    while (next_mapping(maps, &m))
        if (m.inode == own.inode && m.major == own.major && m.minor == own.minor)
            add_run(&m, first, at, arena, bytes, found);
    fclose(maps);
    return 1;
}

/* ---- Exchange -------------------------------------------------------------------------------- */

static void block_signals(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* The arena's pages once more, at `at`, where others were. An error of the kernel's in between would leave nothing there, which may
 * not happen: what was there is put back. */
static int map_again(char *at, char *arena, size_t bytes) {
    if (mremap(arena, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at)
        return 1;
    unsigned char there[PIECE_BYTES / PAGE];
    if (mincore(at, bytes, there) == 0)
        return 0;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
        abort();
    memcpy(at, arena, bytes);
    return 0;
}

/* The first `done` bytes are exchanged: how many of all. */
static size_t exchange_pieces(int guard, char *at, char *arena, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        int exchanged = protect(guard, at + done, part);
        if (exchanged) {
            memcpy(arena + done, at + done, part);
            exchanged = map_again(at + done, arena + done, part);
        }
        wake(guard, at + done, part);
        if (!exchanged)
            break;
        done += part;
    }
    return done;
}

/* Whole pages of private memory become those of the arena, with their contents. 0: nothing has changed. */
int cuda_pages_to_arena(char *at, char *arena, size_t bytes) {
    sigset_t before;
    int guard = open_guard();
    if (guard < 0)
        return 0;
    block_signals(&before);
    size_t done = watch(guard, at, bytes) ? exchange_pieces(guard, at, arena, bytes) : 0;
    /* Ends what protection is left, and wakes who waits for it. */
    close(guard);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (done < bytes && done && !cuda_pages_from_arena(at, &(struct cuda_page_run){0, done}))
        abort();
    if (done < bytes)
        return 0;
    madvise(at, bytes, MADV_DONTFORK);
    /* Two mappings, which mremap does not make longer together: what follows in the arena is other memory. */
    if (bytes > PAGE)
        madvise(at + bytes - PAGE, PAGE, MADV_RANDOM);
    return 1;
}

/* A run of the arena's pages at `at` becomes private memory again. `guard` stops writers; -1: there are none. 0: some of it is the
 * arena's still. */
static int make_private(int guard, char *at, const struct cuda_page_run *run) {
    char *from = at + run->at;
    char *room = mmap(NULL, run->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t done = 0;
    if (room == MAP_FAILED)
        return 0;
    while (done < run->bytes) {
        size_t part = run->bytes - done < PIECE_BYTES ? run->bytes - done : PIECE_BYTES;
        int exchanged = guard < 0 || protect(guard, from + done, part);
        if (exchanged) {
            memcpy(room + done, from + done, part);
            exchanged = mremap(room + done, part, part, MREMAP_MAYMOVE | MREMAP_FIXED, from + done) == from + done;
        }
        if (guard >= 0)
            wake(guard, from + done, part);
        if (!exchanged)
            break;
        done += part;
    }
    /* What has moved is somebody else's by now. */
    if (done < run->bytes)
        munmap(room + done, run->bytes - done);
    return done == run->bytes;
}

int cuda_pages_from_arena(char *at, const struct cuda_page_run *run) {
    sigset_t before;
    int guard = open_guard();
    if (guard < 0)
        return 0;
    block_signals(&before);
    int made = watch(guard, at + run->at, run->bytes) && make_private(guard, at, run);
    close(guard);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return made;
}

/* ---- Children of fork ------------------------------------------------------------------------ */

/* Pages of the arena are in a child only where it makes copies of them. */
void cuda_pages_follow_forks(char *at, const struct cuda_page_run *run, int follow) {
    madvise(at + run->at, run->bytes, follow ? MADV_DOFORK : MADV_DONTFORK);
}

/* In a child, which has one thread. 0: it has nothing there, as the parent's pages are not the child's to write. */
int cuda_pages_copied_in_child(char *at, const struct cuda_page_run *run) {
    if (make_private(-1, at, run))
        return 1;
    munmap(at + run->at, run->bytes);
    return 0;
}

/* ---- Whether any of this works here ---------------------------------------------------------- */

static int try_exchange(void) {
    char *arena = aviary_zerocopy_alloc_uninitialized(2 * PAGE);
    char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int works = 0;
    if (arena && at != MAP_FAILED) {
        struct cuda_page_runs found;
        at[PAGE] = 1;
        int adopted = aviaryAdopt(arena, 2 * PAGE, (CUdeviceptr)at) == CUDA_SUCCESS;
        works = adopted && cuda_pages_to_arena(at, arena, 2 * PAGE) && arena[PAGE] == 1 && !arena[0];
        arena[0] = 2;
        works = works && at[0] == 2 && cuda_find_page_runs(at, arena, 2 * PAGE, &found) && found.count && !found.elsewhere;
        if (works)
            free(found.runs);
        works = works && cuda_pages_from_arena(at, &(struct cuda_page_run){0, 2 * PAGE}) && at[PAGE] == 1;
        if (adopted)
            aviaryDisown((CUdeviceptr)at, 2 * PAGE);
    }
    if (at != MAP_FAILED)
        munmap(at, 2 * PAGE);
    aviary_zerocopy_free(arena);
    return works;
}

/* Asked once. 0: the API server cannot map the same pages, or the kernel cannot stop writers. */
int cuda_pages_can_be_exchanged(void) {
    static int known;
    int answer = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
    if (!answer) {
        answer = sysconf(_SC_PAGESIZE) == PAGE && cuda_shares_memory() && try_exchange() ? 1 : -1;
        __atomic_store_n(&known, answer, __ATOMIC_RELEASE);
    }
    return answer > 0;
}
