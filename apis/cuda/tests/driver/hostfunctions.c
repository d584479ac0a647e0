/* Functions that streams call on the host: their order, their thread, their data. */
#include "common.h"

#include <pthread.h>
#include <unistd.h>

enum { CALLS = 300 };

static int order[CALLS], calls;
static pthread_t main_thread;
static unsigned elsewhere;

static void note(void *data)
{
    int place = __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);

    order[place] = (int)(intptr_t)data;
    elsewhere += !pthread_equal(pthread_self(), main_thread);
}

static void CUDA_CB told(CUstream stream, CUresult status, void *data)
{
    (void)stream;
    printf("callback: %s, data %d\n", error_name(status), *(int *)data);
}

struct pair {
    const unsigned *source;
    unsigned seen;
};

static void look(void *data)
{
    struct pair *pair = data;

    pair->seen = *pair->source;
}

int main(void)
{
    CUcontext context = start();
    CUstream stream;
    CUdeviceptr memory;
    unsigned *pinned;
    int answer = 42;
    struct pair pairs[5];

    main_thread = pthread_self();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < CALLS; i++)
        MUST(cuLaunchHostFunc(stream, note, (void *)(intptr_t)i));
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < CALLS; i++)
        CHECK(order[i] == i);
    printf("%d calls in order, %u on another thread\n", calls, elsewhere);
    fflush(stdout);
    MUST(cuStreamAddCallback(stream, told, &answer, 0));
    MUST(cuStreamSynchronize(stream));

    /* Data that a copy brought is there when the next function looks. */
    MUST(cuMemAlloc(&memory, 4));
    MUST(cuMemAllocHost((void **)&pinned, 4 * 5));
    for (unsigned i = 0; i < 5; i++) {
        pairs[i] = (struct pair){pinned + i, 0};
        MUST(cuMemsetD32Async(memory, 100 + i, 1, stream));
        MUST(cuMemcpyDtoHAsync(pinned + i, memory, 4, stream));
        MUST(cuLaunchHostFunc(stream, look, &pairs[i]));
    }
    MUST(cuStreamSynchronize(stream));
    printf("seen: %u %u %u %u %u\n", pairs[0].seen, pairs[1].seen, pairs[2].seen, pairs[3].seen, pairs[4].seen);
    TELL(cuLaunchHostFunc(stream, NULL, NULL));
    MUST(cuMemFreeHost(pinned));
    MUST(cuMemFree(memory));
    MUST(cuCtxDestroy(context));
    puts("ok hostfunctions");
    return 0;
}
