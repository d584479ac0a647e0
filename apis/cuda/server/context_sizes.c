/* What a context takes of a device for itself: so much less is free there when another process has one. This process has one on the
 * device before it looks, so that only what comes with every further one counts. Others allocate and free meanwhile, so it looks until
 * two processes' contexts agree. Devices of one kind are looked at once. */
#include "server.h"
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_LOOKS = 5, USUAL_LOOKS = 2, MOST_KINDS = 16 };
#define MIB ((int64_t)1 << 20)
/* Looks that differ by no more than this agree. */
#define AGREED (4 * MIB)
/* Code that libraries load into a context when they first use it: on an H200 a context takes 524 MiB, and a process with PyTorch that
 * multiplies matrices has some 95 MiB more than that and what it has allocated. */
#define LOADED_LATER (128 * MIB)

/* A process that makes contexts as it is told, and keeps them until it is killed. */
struct maker {
    pid_t child;
    int to, from;
};

static void make_contexts(int number, int from, int to) {
    unsigned char device, is_made;
    CUcontext context;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Those that are needed in any case start the driver beside each other. */
    if (number < USUAL_LOOKS)
        cuInit(0);
    while (read(from, &device, 1) == 1) {
        is_made = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS;
        if (write(to, &is_made, 1) != 1)
            break;
    }
    _exit(0);
}

/* Before this process uses the driver. */
static int start_maker(int number, struct maker *maker) {
    int to[2], from[2];
    if (pipe(to) != 0)
        return 0;
    if (pipe(from) != 0) {
        close(to[0]);
        close(to[1]);
        return 0;
    }
    *maker = (struct maker){fork(), to[1], from[0]};
    if (maker->child == 0) {
        close(to[1]);
        close(from[0]);
        make_contexts(number, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return maker->child > 0;
}

static int makes(const struct maker *maker, CUdevice device) {
    unsigned char number = (unsigned char)device, is_made = 0;
    return write(maker->to, &number, 1) == 1 && read(maker->from, &is_made, 1) == 1 && is_made;
}

/* Bytes; -1: the device does not say. */
static int64_t free_on(CUcontext context) {
    size_t available = 0, total = 0;
    if (cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
        return -1;
    CUresult status = cuMemGetInfo_v2(&available, &total);
    cuCtxPopCurrent_v2(&context);
    return status == CUDA_SUCCESS ? (int64_t)available : -1;
}

/* 0: it cannot be measured, or the driver's contexts take nothing. */
static int64_t measure(const struct maker *makers, int count, CUdevice device) {
    int64_t looks[MOST_LOOKS] = {0}, least = 0;
    CUcontext own;
    if (cuDevicePrimaryCtxRetain(&own, device) != CUDA_SUCCESS)
        return 0;
    for (int at = 0; at < count; at++) {
        int64_t before = free_on(own);
        if (!makes(&makers[at], device))
            break;
        int64_t after = free_on(own);
        looks[at] = before < 0 || after < 0 ? 0 : before - after;
        if (looks[at] > 0 && (!least || looks[at] < least))
            least = looks[at];
        for (int other = 0; other < at; other++)
            if (looks[at] - looks[other] <= AGREED && looks[other] - looks[at] <= AGREED)
                return looks[at] < looks[other] ? looks[at] : looks[other];
    }
    return least;
}

/* Of devices of one name and size. */
struct kind {
    char name[ORDINAL_NAME_BYTES];
    size_t memory;
    int64_t bytes;
};

static int64_t bytes_on(const struct maker *makers, int count, struct kind *kinds, int *known, CUdevice device) {
    struct kind kind = {0};
    if (cuDeviceGetName(kind.name, sizeof kind.name, device) != CUDA_SUCCESS
        || cuDeviceTotalMem_v2(&kind.memory, device) != CUDA_SUCCESS)
        return 0;
    for (int i = 0; i < *known; i++)
        if (strcmp(kinds[i].name, kind.name) == 0 && kinds[i].memory == kind.memory)
            return kinds[i].bytes;
    kind.bytes = measure(makers, count, device);
    if (*known < MOST_KINDS)
        kinds[(*known)++] = kind;
    return kind.bytes;
}

void aviary_contexts(void (*tell)(void *context, const struct aviary_holder *holder), void *context) {
    struct maker makers[MOST_LOOKS];
    struct kind kinds[MOST_KINDS];
    int started = 0, known = 0, count = 0;
    signal(SIGPIPE, SIG_IGN);
    while (started < MOST_LOOKS && start_maker(started, &makers[started]))
        started++;
    if (cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS)
        for (CUdevice device = 0; device < count; device++) {
            int64_t bytes = bytes_on(makers, started, kinds, &known, device);
            const char *name = cuda_ordinal_name(cuda_ordinal_of_device(device), 0);
            if (bytes > 0 && name)
                tell(context, &(struct aviary_holder){.device = name, .bytes = (uint64_t)(bytes + LOADED_LATER)});
        }
    for (int i = 0; i < started; i++) {
        kill(makers[i].child, SIGKILL);
        waitpid(makers[i].child, NULL, 0);
    }
}
