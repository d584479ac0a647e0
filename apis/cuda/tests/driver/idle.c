/* What is asked again when nothing was sent in between, and events that are made and destroyed over and over. */
#include "common.h"

#include <pthread.h>
#include <unistd.h>

enum { ROUNDS = 100, EVENTS = 200 };

static CUcontext context;

/* ---- Work of other threads ------------------------------------------------------------------- */

struct gate {
    int open, passed;
};

/* Work that takes until somebody lets it end. */
static void wait_for_gate(void *data)
{
    struct gate *gate = data;

    while (!__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE))
        usleep(100);
    usleep(1000);
    __atomic_store_n(&gate->passed, 1, __ATOMIC_RELEASE);
}

struct work {
    CUstream stream;
    struct gate gate;
};

static void *give_work(void *data)
{
    struct work *work = data;

    MUST(cuCtxSetCurrent(context));
    MUST(cuLaunchHostFunc(work->stream, wait_for_gate, &work->gate));
    return NULL;
}

static void *open_gate(void *data)
{
    struct gate *gate = data;

    usleep(2000);
    __atomic_store_n(&gate->open, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* This thread knows that the stream has nothing to do; then another thread gives it something. */
static void others_give_work(CUstream stream, int whole)
{
    unsigned busy = 0, waited = 0;

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct work work = {.stream = stream};
        pthread_t giver, opener;

        MUST(whole ? cuCtxSynchronize() : cuStreamSynchronize(stream));
        MUST(whole ? cuCtxSynchronize() : cuStreamQuery(stream));
        CHECK(pthread_create(&giver, NULL, give_work, &work) == 0);
        CHECK(pthread_join(giver, NULL) == 0);
        busy += cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
        CHECK(pthread_create(&opener, NULL, open_gate, &work.gate) == 0);
        MUST(whole ? cuCtxSynchronize() : cuStreamSynchronize(stream));
        waited += __atomic_load_n(&work.gate.passed, __ATOMIC_ACQUIRE);
        CHECK(pthread_join(opener, NULL) == 0);
    }
    printf("another thread's work: busy %u, waited for %u\n", busy, waited);
}

/* ---- Questions about nothing ------------------------------------------------------------------ */

static void ask_again(CUstream stream)
{
    CUdeviceptr memory;

    MUST(cuMemAlloc(&memory, 4096));
    for (unsigned i = 0; i < ROUNDS; i++) {
        MUST(cuMemsetD8Async(memory, i, 4096, stream));
        MUST(cuStreamSynchronize(stream));
        for (unsigned j = 0; j < 10; j++) {
            MUST(cuStreamSynchronize(stream));
            MUST(cuStreamQuery(stream));
        }
        MUST(cuCtxSynchronize());
        for (unsigned j = 0; j < 10; j++)
            MUST(cuCtxSynchronize());
    }
    MUST(cuMemFree(memory));
    MUST(cuCtxSynchronize());
    TELL(cuStreamQuery(stream));
    MUST(cuStreamDestroy(stream));
    TELL(cuCtxSynchronize());
}

/* ---- Events ------------------------------------------------------------------------------------ */

static void like_new_ones(unsigned flags)
{
    CUevent made[EVENTS], other;
    float milliseconds;

    MUST(cuEventCreate(&other, flags));
    MUST(cuEventRecord(other, NULL));
    MUST(cuEventSynchronize(other));
    for (unsigned round = 0; round < 3; round++) {
        unsigned unlike = 0;

        for (unsigned i = 0; i < EVENTS; i++) {
            MUST(cuEventCreate(&made[i], flags));
            unlike += cuEventQuery(made[i]) != CUDA_SUCCESS;
            unlike += cuEventSynchronize(made[i]) != CUDA_SUCCESS;
            unlike += cuStreamWaitEvent(NULL, made[i], 0) != CUDA_SUCCESS;
            unlike += cuEventElapsedTime(&milliseconds, made[i], other) != CUDA_ERROR_INVALID_HANDLE;
            unlike += cuEventElapsedTime(&milliseconds, other, made[i]) != CUDA_ERROR_INVALID_HANDLE;
            for (unsigned j = 0; j < i; j++)
                unlike += made[i] == made[j];
        }
        for (unsigned i = 0; i < EVENTS; i++) {
            MUST(cuEventRecord(made[i], NULL));
            if (i % 2)
                MUST(cuEventSynchronize(made[i]));
            else if (i % 4)
                unlike += cuEventQuery(made[i]) != CUDA_SUCCESS && cuEventSynchronize(made[i]) != CUDA_SUCCESS;
        }
        MUST(cuCtxSynchronize());
        for (unsigned i = 0; i < EVENTS; i++) {
            CUresult status = cuEventElapsedTime(&milliseconds, other, made[i]);

            unlike += status != (flags & CU_EVENT_DISABLE_TIMING ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS);
            MUST(cuEventDestroy(made[i]));
        }
        printf("flags %u, round %u: %u unlike\n", flags, round, unlike);
    }
    MUST(cuEventDestroy(other));
}

/* An event that is destroyed in between is not the one that was made. */
static void destroyed(void)
{
    CUevent event, next;
    float milliseconds;
    unsigned refused = 0;

    MUST(cuEventCreate(&event, 0));
    MUST(cuEventDestroy(event));
    /* Which error it is the drivers do not agree on. */
    refused += cuEventQuery(event) != CUDA_SUCCESS;
    refused += cuEventRecord(event, NULL) != CUDA_SUCCESS;
    refused += cuEventSynchronize(event) != CUDA_SUCCESS;
    refused += cuStreamWaitEvent(NULL, event, 0) != CUDA_SUCCESS;
    refused += cuEventElapsedTime(&milliseconds, event, event) != CUDA_SUCCESS;
    refused += cuEventDestroy(event) != CUDA_SUCCESS;
    printf("a destroyed event: %u of 6 refused\n", refused);
    MUST(cuEventCreate(&next, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(next, NULL));
    MUST(cuEventSynchronize(next));
    TELL(cuEventQuery(next));
    MUST(cuEventDestroy(next));
}

/* Events end with their context; those of the next one are its own. */
static void next_context(CUdevice device)
{
    CUevent event;

    MUST(cuCtxDestroy(context));
    MUST(cuCtxCreate(&context, NULL, 0, device));
    for (unsigned i = 0; i < EVENTS; i++) {
        MUST(cuEventCreate(&event, 0));
        MUST(cuEventRecord(event, NULL));
        MUST(cuEventSynchronize(event));
        MUST(cuEventDestroy(event));
    }
    printf("events of the next context\n");
}

static void *make_and_destroy(void *data)
{
    CUevent event;

    (void)data;
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 20 * ROUNDS; i++) {
        MUST(cuEventCreate(&event, i % 2 ? CU_EVENT_DISABLE_TIMING : 0));
        MUST(cuEventRecord(event, NULL));
        if (i % 3)
            MUST(cuEventSynchronize(event));
        MUST(cuEventDestroy(event));
    }
    return NULL;
}

static void by_threads(void)
{
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, make_and_destroy, NULL) == 0);
    for (unsigned i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    MUST(cuCtxSynchronize());
    printf("events of four threads\n");
}

int main(void)
{
    CUstream stream;
    CUdevice device;

    context = start();
    MUST(cuDeviceGet(&device, 0));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    others_give_work(stream, 0);
    others_give_work(NULL, 1);
    ask_again(stream);
    like_new_ones(0);
    like_new_ones(CU_EVENT_DISABLE_TIMING);
    destroyed();
    by_threads();
    next_context(device);
    MUST(cuCtxDestroy(context));
    printf("ok idle\n");
    return 0;
}
