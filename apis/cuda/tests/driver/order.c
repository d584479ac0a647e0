/* Streams and events: order within a stream, between streams by events, and around the default streams. */
#include "common.h"
#include "kernels.h"

#include <unistd.h>

enum { COUNT = 1 << 16, ROUNDS = 200 };
static unsigned values[COUNT];

static CUfunction fill;

static void launch(CUdeviceptr memory, unsigned first, CUstream stream)
{
    unsigned count = COUNT;
    void *parameters[] = {&memory, &first, &count};

    MUST(cuLaunchKernel(fill, 4, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
}

static void slow(void *data)
{
    usleep(150000);
    __atomic_store_n((int *)data, 1, __ATOMIC_SEQ_CST);
}

static void between_streams(void)
{
    CUdeviceptr first, second;
    CUstream producer, consumer;
    CUevent made, taken;
    float milliseconds;
    unsigned wrong = 0;

    MUST(cuMemAlloc(&first, sizeof(values)));
    MUST(cuMemAlloc(&second, sizeof(values)));
    MUST(cuStreamCreate(&producer, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreateWithPriority(&consumer, CU_STREAM_NON_BLOCKING, -1));
    MUST(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&taken, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < ROUNDS; i++) {
        /* Only events keep the copy between two fills. */
        MUST(cuStreamWaitEvent(producer, taken, 0));
        MUST(cuMemsetD32Async(first, i, COUNT, producer));
        MUST(cuEventRecord(made, producer));
        MUST(cuStreamWaitEvent(consumer, made, 0));
        MUST(cuMemcpyDtoDAsync(second, first, sizeof(values), consumer));
        MUST(cuEventRecord(taken, consumer));
        if (i % 50 != 49)
            continue;
        MUST(cuMemcpyDtoHAsync(values, second, sizeof(values), consumer));
        MUST(cuStreamSynchronize(consumer));
        for (unsigned j = 0; j < COUNT; j++)
            wrong += values[j] != i;
    }
    printf("between streams: %u wrong\n", wrong);
    TELL(cuEventElapsedTime(&milliseconds, made, taken));
    MUST(cuEventDestroy(made));
    MUST(cuEventDestroy(taken));
    MUST(cuStreamDestroy(producer));
    MUST(cuStreamDestroy(consumer));
    MUST(cuMemFree(first));
    MUST(cuMemFree(second));
}

/* Work on the default stream waits for blocking streams and they for it; others do not care. */
static void default_stream(void)
{
    CUstream blocking, other;
    CUdeviceptr memory;
    int done = 0;
    unsigned value;

    MUST(cuMemAlloc(&memory, sizeof(values)));
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuLaunchHostFunc(blocking, slow, &done));
    MUST(cuMemsetD32Async(memory, 5, COUNT, blocking));
    MUST(cuMemcpyDtoH(&value, memory, sizeof(value)));
    printf("the default stream waited: %d, value %u\n", done, value);

    done = 0;
    MUST(cuLaunchHostFunc(NULL, slow, &done));
    MUST(cuMemsetD32Async(memory, 6, COUNT, NULL));
    MUST(cuMemcpyDtoHAsync(values, memory, sizeof(value), blocking));
    MUST(cuStreamSynchronize(blocking));
    printf("a blocking stream waited: %d, value %u\n", done, values[0]);

    done = 0;
    MUST(cuLaunchHostFunc(CU_STREAM_LEGACY, slow, &done));
    MUST(cuMemsetD32Async(memory, 7, 1, other));
    MUST(cuStreamSynchronize(other));
    printf("another stream did not wait: %d\n", __atomic_load_n(&done, __ATOMIC_SEQ_CST));
    TELL(cuStreamQuery(CU_STREAM_LEGACY));
    MUST(cuCtxSynchronize());
    TELL(cuStreamQuery(CU_STREAM_LEGACY));
    MUST(cuMemsetD32Async(memory, 8, 1, CU_STREAM_PER_THREAD));
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    MUST(cuMemcpyDtoH(&value, memory, sizeof(value)));
    printf("per thread: %u\n", value);
    MUST(cuStreamDestroy(blocking));
    MUST(cuStreamDestroy(other));
    MUST(cuMemFree(memory));
}

static void events(void)
{
    CUstream stream;
    CUevent start_event, end_event, never;
    CUdeviceptr memory;
    float milliseconds;
    int done = 0, priority, least, greatest;
    unsigned flags;

    MUST(cuMemAlloc(&memory, sizeof(values)));
    MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100));
    MUST(cuStreamGetPriority(stream, &priority));
    MUST(cuStreamGetFlags(stream, &flags));
    MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
    printf("priority %s, flags %u\n", priority == greatest ? "greatest" : "other", flags);
    MUST(cuEventCreate(&start_event, CU_EVENT_DEFAULT));
    MUST(cuEventCreate(&end_event, CU_EVENT_BLOCKING_SYNC));
    MUST(cuEventCreate(&never, CU_EVENT_DEFAULT));
    TELL(cuEventQuery(never));
    TELL(cuEventSynchronize(never));
    TELL(cuEventElapsedTime(&milliseconds, start_event, never));
    MUST(cuEventRecord(start_event, stream));
    MUST(cuLaunchHostFunc(stream, slow, &done));
    launch(memory, 3, stream);
    MUST(cuEventRecord(end_event, stream));
    TELL(cuEventQuery(end_event));
    TELL(cuStreamQuery(stream));
    TELL(cuEventElapsedTime(&milliseconds, start_event, end_event));
    MUST(cuEventSynchronize(end_event));
    TELL(cuEventQuery(end_event));
    MUST(cuEventElapsedTime(&milliseconds, start_event, end_event));
    printf("between 0.1 s and 20 s: %d\n", milliseconds > 100 && milliseconds < 20000);
    /* An event and a stream may go while their work is under way. */
    MUST(cuLaunchHostFunc(stream, slow, &done));
    MUST(cuMemsetD32Async(memory, 77, COUNT, stream));
    MUST(cuEventRecord(end_event, stream));
    MUST(cuEventDestroy(end_event));
    MUST(cuStreamDestroy(stream));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(values, memory, sizeof(values)));
    printf("after the stream's end: %u\n", values[COUNT - 1]);
    TELL(cuStreamSynchronize(stream));
    TELL(cuEventQuery(end_event));
    MUST(cuEventDestroy(start_event));
    MUST(cuEventDestroy(never));
    MUST(cuMemFree(memory));
}

static void values_in_memory(void)
{
    CUstream waiter, writer;
    CUdeviceptr flag, result;
    unsigned value;

    MUST(cuMemAlloc(&flag, 8));
    MUST(cuMemAlloc(&result, 4));
    MUST(cuMemsetD32(flag, 0, 2));
    MUST(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamWaitValue32(waiter, flag, 3, CU_STREAM_WAIT_VALUE_GEQ));
    MUST(cuMemcpyDtoDAsync(result, flag, 4, waiter));
    TELL(cuStreamQuery(waiter));
    MUST(cuStreamWriteValue32(writer, flag, 4, 0));
    MUST(cuStreamSynchronize(waiter));
    MUST(cuMemcpyDtoH(&value, result, sizeof(value)));
    printf("waited for 3, saw %u\n", value);
    MUST(cuStreamDestroy(waiter));
    MUST(cuStreamDestroy(writer));
    MUST(cuMemFree(flag));
    MUST(cuMemFree(result));
}

int main(void)
{
    CUcontext context = start();
    CUmodule module;

    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    between_streams();
    default_stream();
    events();
    values_in_memory();
    MUST(cuCtxDestroy(context));
    puts("ok order");
    return 0;
}
