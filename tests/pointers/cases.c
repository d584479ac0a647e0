/* Calls every function of an API with each pointer among its arguments in turn set to addresses that mean nothing in the
 * API server: NULL, 0x10, and live memory of this process that is full of such addresses. The program may die of that, as it
 * would natively; its API server may not, and nobody else's.
 *
 *   cases           prints how much it called, and one line for each API server that died; fails if one did
 *   cases FUNCTION  only that function, and says what it calls it with
 *
 * Calls are made in a child, in threads of it: one that faults is left lying, and the next thread goes on. A child whose
 * API server is gone, or that has left many threads behind, is replaced by another one. */
#define _GNU_SOURCE
#include "cases.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include POINTERS_SETUP

/* Nothing else is there in any process: nothing that the API server has. */
#define LIVE ((char *)0x2a2b00000000)
#define LIVE_BYTES (64 << 10)
#define SCRATCH_BYTES 4096
/* Threads that a child leaves behind, and how long one call may take before its child is given up, in seconds. */
#define MOST_LEFT 24
#define PATIENCE 20

enum bad { NOTHING, LOW, TO_ITSELF, TO_ITSELF_AND_ONE, ONE_AND_TO_ITSELF, BAD_VALUES };
static const char *const bad_names[] = {"NULL", "0x10", "live memory", "live memory, then 1", "1, then live memory"};

struct one {
    unsigned int function, argument;
    enum bad bad;
    /* The other arguments: zero and NULL, or one and room. */
    int generous;
};

/* Shared with the children. */
struct progress {
    unsigned int next, calls, faults, stuck, dead, attached;
};

static struct one *cases;
static unsigned int case_count;
static struct progress *progress;
static int verbose;
static sem_t over;
static _Thread_local int is_worker;
static volatile int in_callback;
static volatile int faulted;

static struct {
    const char *type;
    uint64_t value;
} good[64];
static unsigned int good_count;
static const char *address_types[8];
static unsigned int address_count;

void known(const char *type, uint64_t value) {
    if (good_count == sizeof good / sizeof *good)
        abort();
    good[good_count].type = type;
    good[good_count++].value = value;
}

void addresses(const char *type) {
    if (address_count == sizeof address_types / sizeof *address_types)
        abort();
    address_types[address_count++] = type;
}

static int is_address(const struct pointers_parameter *parameter) {
    for (unsigned int i = 0; i < address_count; i++)
        if (parameter->kind == POINTERS_INTEGER && !strcmp(parameter->type, address_types[i]))
            return 1;
    return parameter->kind == POINTERS_POINTER || parameter->kind == POINTERS_CALLBACK
           || parameter->kind == POINTERS_STRUCT_WITH_POINTERS;
}

static void fill(uint64_t *words, size_t count, enum bad bad) {
    for (size_t i = 0; i < count; i++) {
        int one = (bad == TO_ITSELF_AND_ONE && i % 2) || (bad == ONE_AND_TO_ITSELF && !(i % 2));
        words[i] = bad == NOTHING ? 0 : bad == LOW ? 0x10 : one ? 1 : (uint64_t)LIVE;
    }
}

static void call(const struct one *one) {
    static _Thread_local char scratch[POINTERS_PARAMETERS][SCRATCH_BYTES];
    const struct pointers_function *function = &pointers_functions[one->function];
    union pointers_value values[POINTERS_PARAMETERS];
    void *address = dlsym(RTLD_DEFAULT, function->name);
    if (!address)
        return;
    fill((uint64_t *)LIVE, LIVE_BYTES / 8, one->bad);
    in_callback = function->parameters[one->argument].kind == POINTERS_CALLBACK;
    for (unsigned int i = 0; i < function->count; i++) {
        const struct pointers_parameter *parameter = &function->parameters[i];
        int structure = parameter->kind == POINTERS_STRUCT || parameter->kind == POINTERS_STRUCT_WITH_POINTERS;
        if (parameter->bytes > SCRATCH_BYTES)
            abort();
        memset(scratch[i], 0, SCRATCH_BYTES);
        values[i].word = one->generous && parameter->kind == POINTERS_INTEGER;
        if (structure || (one->generous && parameter->kind == POINTERS_POINTER))
            values[i].memory = scratch[i];
        if (parameter->kind == POINTERS_FLOAT)
            values[i].number = one->generous;
        for (unsigned int g = 0; g < good_count; g++)
            if (!strcmp(good[g].type, parameter->type))
                values[i].word = good[g].value;
        if (i == one->argument && structure)
            fill((uint64_t *)scratch[i], SCRATCH_BYTES / 8, one->bad);
        else if (i == one->argument)
            values[i].word = one->bad == NOTHING ? 0 : one->bad == LOW ? 0x10 : (uint64_t)LIVE;
    }
    function->call(address, values);
}

static void describe(const struct one *one, const char *what) {
    const struct pointers_function *function = &pointers_functions[one->function];
    printf("%s: %s, argument %u (%s) = %s, the others %s\n", what, function->name, one->argument + 1,
           function->parameters[one->argument].type, bad_names[one->bad], one->generous ? "given" : "zero");
    fflush(stdout);
}

/* ---- A child ------------------------------------------------------------------------------------- */

static void on_fault(int number) {
    (void)number;
    /* In a callback: nobody would answer the API server, which the others may wait for. */
    if (!is_worker || in_callback)
        _exit(7);
    faulted = 1;
    sem_post(&over);
    for (;;)
        pause();
}

static void *work(void *nothing) {
    is_worker = 1;
    each_thread();
    while (progress->next < case_count) {
        const struct one *one = &cases[progress->next++];
        if (verbose)
            describe(one, "call");
        progress->calls++;
        call(one);
        if (!alive())
            _exit(3);
    }
    sem_post(&over);
    return nothing;
}

static void child(void) {
    struct sigaction action = {.sa_handler = on_fault};
    if (!setup() || !alive())
        _exit(4);
    if (mmap(LIVE, LIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != LIVE)
        _exit(5);
    progress->attached++;
    sem_init(&over, 0, 0);
    const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    for (unsigned int i = 0; i < sizeof faults / sizeof *faults; i++)
        sigaction(faults[i], &action, NULL);
    for (unsigned int left = 0; left < MOST_LEFT && progress->next < case_count; left++) {
        pthread_t worker;
        faulted = 0;
        if (pthread_create(&worker, NULL, work, NULL) != 0)
            _exit(6);
        while (sem_wait(&over) != 0 && errno == EINTR)
            ;
        if (!faulted)
            break;
        progress->faults++;
        /* It may have sent something first. */
        if (!alive())
            _exit(3);
    }
    _exit(0);
}

/* ---- The parent ---------------------------------------------------------------------------------- */

/* Waits for the child and answers how it ended; one that makes no progress is given up. */
static int follow(pid_t child) {
    unsigned int seen = progress->calls;
    struct timespec step = {.tv_nsec = 2000000};
    for (double waited = 0;; waited += 0.002) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        if (progress->calls != seen) {
            seen = progress->calls;
            waited = 0;
        }
        if (waited > PATIENCE) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return -SIGALRM;
        }
        nanosleep(&step, NULL);
    }
}

/* Another session, which asks as long as the test lasts. */
static pid_t bystander(int *end) {
    int ends[2];
    if (pipe(ends) != 0)
        exit(2);
    pid_t pid = fork();
    if (pid == 0) {
        struct timespec step = {.tv_nsec = 20000000};
        char byte;
        close(ends[1]);
        if (!setup())
            _exit(4);
        while (alive()) {
            struct timespec none = {0};
            fd_set set;
            FD_ZERO(&set);
            FD_SET(ends[0], &set);
            if (pselect(ends[0] + 1, &set, NULL, NULL, &none, NULL) > 0 && read(ends[0], &byte, 1) == 0)
                _exit(0);
            nanosleep(&step, NULL);
        }
        _exit(3);
    }
    close(ends[0]);
    *end = ends[1];
    return pid;
}

static void collect(const char *only, unsigned int *functions, unsigned int *arguments) {
    for (unsigned int f = 0; pointers_functions[f].name; f++) {
        const struct pointers_function *function = &pointers_functions[f];
        if ((only && strcmp(only, function->name)) || !dlsym(RTLD_DEFAULT, function->name))
            continue;
        *functions += 1;
        for (unsigned int a = 0; a < function->count; a++) {
            if (!is_address(&function->parameters[a]))
                continue;
            *arguments += 1;
            for (unsigned int bad = 0; bad < BAD_VALUES; bad++)
                for (int generous = bad <= LOW; generous < 2; generous++) {
                    cases = realloc(cases, (case_count + 1) * sizeof *cases);
                    if (!cases)
                        exit(2);
                    cases[case_count++] = (struct one){f, a, bad, generous};
                }
        }
    }
}

int main(int count, char **arguments) {
    unsigned int functions = 0, pointers = 0;
    int end, status = 0;
    verbose = count > 1;
    addresses_of_the_api();
    collect(count > 1 ? arguments[1] : NULL, &functions, &pointers);
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED)
        return 2;
    pid_t other = bystander(&end);
    while (progress->next < case_count) {
        unsigned int before = progress->next;
        pid_t pid = fork();
        if (pid == 0) {
            close(end);
            child();
        }
        int ended = follow(pid);
        const struct one *last = &cases[progress->next ? progress->next - 1 : 0];
        switch (ended) {
        case 0: break;
        case 3:
            progress->dead++;
            describe(last, "the API server died");
            break;
        case 4:
        case 5:
        case 6: printf("no session: %d\n", ended); return 1;
        case -SIGALRM:
            progress->stuck++;
            describe(last, "never returned");
            break;
        default:
            /* Of a callback, or of memory that is not its own: the program would have died. */
            progress->faults++;
        }
        if (progress->next == before && ended != 0) {
            printf("no progress: %d\n", ended);
            return 1;
        }
    }
    close(end);
    int unhurt = follow(other) == 0;
    printf("%u functions, %u pointer arguments, %u calls in %u sessions: %u faults in the program, %u never returned, "
           "%u API servers died, another session %s\n",
           functions, pointers, progress->calls, progress->attached, progress->faults, progress->stuck, progress->dead,
           unhurt ? "unhurt" : "hurt");
    if (progress->dead || !unhurt || !progress->calls)
        status = 1;
    return status;
}
