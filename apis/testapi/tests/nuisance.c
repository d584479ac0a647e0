/* A tenant that means harm to the others on its device, in one of these ways, until it is killed:
     calls      eight threads make calls that do nothing, as fast as they can
     launches   eight threads submit work of 5 us
     queue      a thousand submissions of 20 ms at a time
     long       submissions of 60 s
     frames     four threads move 64 MiB at a time
     garbage    attaches and writes garbage, oversized lengths too, over the memory that it shares with the node
     crash      eight processes at a time attach, submit and kill themselves
     sessions   a hundred processes at a time attach, as many as are let in, make some calls and begin anew
     all        all of them at once
     burn       eight threads that never call: what the processors' scheduler alone makes of such a neighbour
   usage: nuisance KIND CLIENT */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

#define THREADS 8
#define FRAME ((size_t)64 << 20)

static uint32_t client;
static char self[4096];

static void *calls(void *number) {
    for (;;)
        if ((uintptr_t)number % 2 ? ta_noop() : ta_noop_async())
            return NULL;
}

static void *launches(void *unused) {
    (void)unused;
    while (ta_accelerator_submit(client, 5000) == TA_OK)
        ;
    return NULL;
}

static void *frames(void *unused) {
    (void)unused;
    ta_device device;
    ta_buffer buffer;
    unsigned char *data = malloc(FRAME);
    if (!data || ta_device_open("frames", &device))
        return NULL;
    memset(data, 1, FRAME);
    for (;;) {
        if (ta_buffer_create(device, FRAME, &buffer))
            return NULL;
        ta_buffer_write(buffer, 0, FRAME, data);
        ta_buffer_read(buffer, 0, FRAME, data);
        ta_buffer_destroy(buffer);
    }
}

static void *burn(void *unused) {
    (void)unused;
    for (;;)
        __asm__ volatile("");
    return NULL;
}

static void together(void *(*work)(void *), uintptr_t threads) {
    pthread_t started[THREADS];
    for (uintptr_t i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, (void *)i))
            _exit(1);
    for (uintptr_t i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
}

static void submissions(uint64_t nanoseconds, int batch) {
    for (;;) {
        for (int i = 0; i < batch; i++)
            if (ta_accelerator_submit(client, nanoseconds))
                return;
        if (ta_accelerator_finish())
            return;
    }
}

static void make_calls(void) { together(calls, THREADS); }
static void make_launches(void) { together(launches, THREADS); }
static void move_frames(void) { together(frames, THREADS / 2); }
static void turn_in_circles(void) { together(burn, THREADS); }
static void queue(void) { submissions(20000000, 1000); }
static void submit_long(void) { submissions(60000000000, 1); }

static void crash(void) {
    ta_accelerator_submit(client, 1000000);
    ta_noop();
    raise(SIGKILL);
}

static void attach(void) {
    for (int i = 0; i < 100; i++)
        if (ta_noop())
            return;
}

static void write_garbage(void) {
    char program[sizeof self + 16], seed[24], *slash;
    strcpy(program, self);
    slash = strrchr(program, '/');
    strcpy(slash ? slash + 1 : program, "hostile");
    snprintf(seed, sizeof seed, "%d", getpid());
    execl(program, program, seed, (char *)NULL);
}

static const struct kind {
    const char *name;
    void (*once)(void);
    int at_a_time;
} kinds[] = {
    {"calls", make_calls, 1}, {"launches", make_launches, 1},  {"queue", queue, 1}, {"long", submit_long, 1},
    {"frames", move_frames, 1}, {"garbage", write_garbage, 1}, {"crash", crash, 8}, {"sessions", attach, 100},
    /* Not part of `all`. */
    {"burn", turn_in_circles, 1},
};
#define KINDS (sizeof kinds / sizeof *kinds)

/* A process for `once`, which ends with its parent. */
static void start(void (*once)(void)) {
    pid_t parent = getpid(), child = fork();
    if (child < 0)
        usleep(10000);
    if (child != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        once();
    _exit(0);
}

/* Begun anew when it ends, whatever ended it. */
static const struct kind *chosen;
static void repeat(void) {
    for (int running = 0;; running++) {
        if (running >= chosen->at_a_time)
            wait(NULL);
        start(chosen->once);
    }
}

int main(int argc, char **argv) {
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (argc != 3 || length < 0) {
        fprintf(stderr, "usage: nuisance KIND CLIENT\n");
        return 2;
    }
    client = (uint32_t)atoi(argv[2]);
    for (chosen = kinds; chosen < kinds + KINDS; chosen++)
        if (!strcmp(chosen->name, argv[1]))
            repeat();
    for (chosen = kinds; chosen < kinds + KINDS && !strcmp(argv[1], "all"); chosen++)
        if (chosen->once != turn_in_circles)
            start(repeat);
    while (wait(NULL) > 0)
        ;
    fprintf(stderr, "nuisance: there is no %s\n", argv[1]);
    return 2;
}
