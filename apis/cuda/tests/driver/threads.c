/* Many threads with streams, events, copies and kernels of their own, in one context. */
#include "common.h"
#include "kernels.h"

#include <pthread.h>

enum { THREADS = 16, ROUNDS = 60, COUNT = 2000 };

static CUcontext context;
static CUfunction fill;
static CUkernel count;
static unsigned wrong;

static void *work(void *argument)
{
    unsigned self = (unsigned)(uintptr_t)argument, *values = malloc(COUNT * sizeof(*values)), length = COUNT;
    CUstream stream;
    CUevent event;

    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, self % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < ROUNDS; i++) {
        CUdeviceptr x, y;
        unsigned first = self * 1000 + i;
        void *parameters[] = {&x, &first, &length};
        CUstream use = i % 3 ? stream : CU_STREAM_PER_THREAD;

        MUST(cuMemAlloc(&x, COUNT * 4));
        MUST(cuMemAllocAsync(&y, COUNT * 4, use));
        MUST(cuLaunchKernel(fill, 1, 1, 1, 64, 1, 1, 0, use, parameters, NULL));
        MUST(cuMemcpyDtoDAsync(y, x, COUNT * 4, use));
        MUST(cuLaunchKernel((CUfunction)count, 1, 1, 1, 1, 1, 1, 0, use, NULL, NULL));
        MUST(cuEventRecord(event, use));
        MUST(cuMemcpyDtoHAsync(values, y, COUNT * 4, use));
        MUST(cuEventSynchronize(event));
        MUST(cuStreamSynchronize(use));
        for (unsigned j = 0; j < COUNT; j++)
            if (values[j] != first + j)
                __atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
        MUST(cuMemFreeAsync(y, use));
        MUST(cuMemFree(x));
    }
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(stream));
    free(values);
    return NULL;
}

/* Memory that comes and goes in many threads at once: what one gives back is another's the next moment. */
static void *churn(void *unused)
{
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 10 * ROUNDS; i++) {
        CUdeviceptr x;

        MUST(cuMemAlloc(&x, 4 << 20));
        MUST(cuMemFree(x));
    }
    return NULL;
}

static void together(void *(*body)(void *))
{
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)i) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(void)
{
    CUmodule module;
    CUlibrary library;
    CUdeviceptr counter;
    unsigned counted;

    context = start();
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuLibraryLoadData(&library, several, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernel(&count, library, "count"));
    together(work);
    together(churn);
    MUST(cuLibraryGetGlobal(&counter, NULL, library, "counter"));
    MUST(cuMemcpyDtoH(&counted, counter, 4));
    printf("%d threads, %u wrong, %u counted\n", THREADS, wrong, counted - 7);
    MUST(cuCtxDestroy(context));
    puts("ok threads");
    return 0;
}
