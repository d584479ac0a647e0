/* Captures, in every mode, while other threads of the program launch and wait: none of that breaks into them. */
#include "common.h"
#include "kernels.h"

#include <pthread.h>
#include <unistd.h>

enum { ROUNDS = 40, WORKERS = 2, COUNT = 256 };

static CUcontext context;
static CUfunction fill;
static CUdeviceptr memory;
static int ended;
/* How often the workers are to launch something and wait for it, and how often each has. */
static unsigned asked, done[WORKERS];

static void launch(CUstream stream, unsigned first)
{
    unsigned length = COUNT;
    void *parameters[] = {&memory, &first, &length};

    MUST(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}

/* Has said that it knows what it does: it may wait while others capture. */
static void *work(void *number)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream stream;

    MUST(cuCtxSetCurrent(context));
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!__atomic_load_n(&ended, __ATOMIC_ACQUIRE)) {
        unsigned *mine = &done[(uintptr_t)number];
        if (*mine == __atomic_load_n(&asked, __ATOMIC_ACQUIRE)) {
            usleep(50);
            continue;
        }
        for (unsigned i = 0; i < 5; i++)
            launch(stream, i);
        MUST(cuStreamSynchronize(stream));
        __atomic_store_n(mine, *mine + 1, __ATOMIC_RELEASE);
    }
    MUST(cuStreamDestroy(stream));
    return NULL;
}

static void begin_work(void) { __atomic_fetch_add(&asked, 1, __ATOMIC_RELEASE); }

static void end_work(void)
{
    for (unsigned i = 0; i < WORKERS; i++)
        while (__atomic_load_n(&done[i], __ATOMIC_ACQUIRE) != asked)
            usleep(50);
}

/* Work in front of the capture, in its stream, the default one and one that takes part later. */
static void capture(CUstreamCaptureMode mode, unsigned flags, unsigned round)
{
    CUstream stream, side;
    CUevent fork, join;
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes;

    MUST(cuStreamCreate(&stream, flags));
    MUST(cuStreamCreate(&side, flags));
    MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    launch(stream, 1);
    launch(side, 2);
    launch(NULL, 3);
    begin_work();
    MUST(cuStreamBeginCapture(stream, mode));
    launch(stream, round);
    end_work();
    begin_work();
    MUST(cuEventRecord(fork, stream));
    MUST(cuStreamWaitEvent(side, fork, 0));
    launch(side, round);
    end_work();
    MUST(cuMemsetD32Async(memory, 7, 1, side));
    MUST(cuEventRecord(join, side));
    MUST(cuStreamWaitEvent(stream, join, 0));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 3);
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
    /* Its work outlives a stream. */
    MUST(cuStreamDestroy(stream));
    MUST(cuStreamSynchronize(side));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuEventDestroy(fork));
    MUST(cuEventDestroy(join));
    MUST(cuStreamDestroy(side));
}

int main(void)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    pthread_t workers[WORKERS];
    CUmodule module;

    context = start();
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuMemAlloc(&memory, COUNT * 4));
    for (unsigned i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&workers[i], NULL, work, (void *)(uintptr_t)i) == 0);
    for (unsigned i = 0; i < ROUNDS; i++)
        capture(modes[i % 3], i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT, i);
    printf("%d captures\n", ROUNDS);
    __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    MUST(cuCtxSynchronize());
    MUST(cuCtxDestroy(context));
    puts("ok captures");
    return 0;
}
