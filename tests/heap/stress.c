// Everything that a program may do with its allocator, with every byte checked. Run with and without --share-heap.
//
//   stress [SECONDS]
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define SLOTS 48
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static double seconds = 2;
static int failures;

#define MUST(x) \
    do { \
        if (!(x)) { \
            fprintf(stderr, "stress:%d: %s\n", __LINE__, #x); \
            __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED); \
        } \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static unsigned next(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

// A word for each page and for the end, so that large blocks are cheap to check.
static void fill(char *p, size_t n, unsigned mark) {
    for (size_t i = 0; i + 4 <= n; i += 4096) memcpy(p + i, &mark, 4);
    memcpy(p + n - 4, &mark, 4);
}

static int holds(const char *p, size_t n, unsigned mark, size_t whole) {
    unsigned word;
    for (size_t i = 0; i + 4 <= n; i += 4096) {
        memcpy(&word, p + i, 4);
        // The last word may lie across a page's first.
        if (word != mark && i + 4 <= whole - 4) return 0;
    }
    if (n < whole) return 1;
    memcpy(&word, p + n - 4, 4);
    return word == mark;
}

static size_t some_size(unsigned *seed) {
    switch (next(seed) % 4) {
    case 0: return 8 + next(seed) % (64 * KIB);
    case 1: return 128 * KIB - 64 + next(seed) % 128;
    case 2: return 128 * KIB + next(seed) % (2 * MIB);
    default: return 128 * KIB + next(seed) % (16 * MIB);
    }
}

struct slot {
    char *p;
    size_t n;
    unsigned mark;
};

static void allocate(struct slot *s, unsigned *seed) {
    size_t n = some_size(seed), align = (size_t)16 << next(seed) % 12;
    void *p = NULL;
    switch (next(seed) % 6) {
    case 0: p = malloc(n); align = 16; break;
    case 1:
        p = calloc(n / 8 + 1, 8);
        n = (n / 8 + 1) * 8;
        align = 16;
        for (size_t i = 0; p && i < n; i++)
            if (((char *)p)[i]) { MUST(!"calloc answers zeros"); break; }
        break;
    case 2: MUST(posix_memalign(&p, align, n) == 0); break;
    case 3: n = (n + align - 1) / align * align; p = aligned_alloc(align, n); break;
    case 4: p = memalign(align, n); break;
    default: p = valloc(n); align = 4096; break;
    }
    MUST(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= n);
    if (!p) n = 0;
    *s = (struct slot){p, n, next(seed) | 1};
    if (p) fill(p, n, s->mark);
}

static void resize(struct slot *s, unsigned *seed) {
    size_t n = some_size(seed), common = n < s->n ? n : s->n;
    char *p = realloc(s->p, n);
    MUST(p);
    if (!p) return;
    MUST(holds(p, common, s->mark, s->n));
    s->p = p, s->n = n;
    fill(p, n, s->mark);
}

static void *churn(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct slot slots[SLOTS] = {0};
    double end = now() + seconds;
    for (unsigned round = 0; round % 64 || now() < end; round++) {
        struct slot *s = &slots[next(&seed) % SLOTS];
        if (!s->p) {
            allocate(s, &seed);
        } else {
            MUST(holds(s->p, s->n, s->mark, s->n));
            if (next(&seed) % 3) {
                free(s->p);
                *s = (struct slot){0};
            } else {
                resize(s, &seed);
            }
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        MUST(!slots[i].p || holds(slots[i].p, slots[i].n, slots[i].mark, slots[i].n));
        free(slots[i].p);
    }
    return NULL;
}

// Data that parent and child write after a fork is their own; both can go on allocating.
static void forks(int depth) {
    size_t n = 8 * MIB;
    unsigned char *p = malloc(n), *sparse = malloc(1024 * MIB);
    MUST(p && sparse);
    memset(p, 1, n);
    int up[2];
    MUST(pipe(up) == 0);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            failures = 0;
            char go;
            // Until then the parent has changed everything.
            MUST(read(up[0], &go, 1) == 1);
            for (size_t i = 0; i < n; i++)
                if (p[i] != 1) { MUST(!"the child has what the parent had"); break; }
            memset(p, 2, n);
            p = realloc(p, 3 * n);
            MUST(p && p[n - 1] == 2);
            if (depth == 0 && round == 0) forks(1);
            churn((void *)(uintptr_t)7);
            free(p);
            free(sparse);
            _exit(failures != 0);
        }
        memset(p, 3, n);
        MUST(write(up[1], "x", 1) == 1);
        int status;
        MUST(waitpid(child, &status, 0) == child && status == 0);
        for (size_t i = 0; i < n; i++)
            if (p[i] != 3) { MUST(!"the parent has its own"); break; }
        memset(p, 1, n);
    }
    close(up[0]), close(up[1]);
    free(p);
    free(sparse);
}

// The compiler may not see that what is written is never read.
static void touch(char *p, size_t n) {
    for (size_t i = 0; i < n; i += 4096) *(volatile char *)(p + i) = 1;
}

static size_t resident(void) {
    // Shared memory counts, too.
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    MUST(f && fscanf(f, "%*u %zu", &pages) == 1);
    if (f) fclose(f);
    return pages * 4096;
}

static void given_back(void) {
    char *p = malloc(512 * MIB);
    MUST(p);
    touch(p, 512 * MIB);
    size_t with = resident();
    free(p);
    MUST(resident() + 400 * MIB < with);
    char *many[256];
    for (int i = 0; i < 256; i++) touch(many[i] = malloc(MIB), MIB);
    with = resident();
    for (int i = 0; i < 256; i++) free(many[i]);
    // Some of it may be kept for the next who asks.
    MUST(resident() + 128 * MIB < with);
}

static void limits(void) {
    void *p = (void *)8;
    errno = 0;
    // Volatile: the compiler knows what malloc does with such numbers.
    volatile size_t huge = SIZE_MAX - 100;
    MUST(!malloc(huge) && errno == ENOMEM);
    MUST(!calloc(huge / 2, 4) && !realloc(NULL, huge));
    MUST(posix_memalign(&p, 3, MIB) == EINVAL && p == (void *)8);
    volatile size_t none = 0;
    p = malloc(MIB);
    MUST(!realloc(p, none));
    free(NULL);
    MUST(malloc_usable_size(NULL) == 0);
    errno = 77;
    free(malloc(MIB));
    MUST(errno == 77);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "where")) {
        // The map that the block lies in, for the test.
        char *p = malloc(MIB), line[512];
        FILE *f = fopen("/proc/self/maps", "r");
        unsigned long from, to;
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "%lx-%lx", &from, &to) == 2 && (uintptr_t)p >= from && (uintptr_t)p < to) fputs(line, stdout);
        return 0;
    }
    if (argc > 1) seconds = atof(argv[1]);
    limits();
    given_back();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, churn, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    seconds = 0.02;
    forks(0);
    if (failures) return 1;
    puts("stress: ok");
    return 0;
}
