/* Copies and fills that leave an allocation, or use one that was freed: refused, and what lies beside keeps its content. */
#include "common.h"

enum { BYTES = 1000 };
static CUdeviceptr before, memory, behind, large, gone;
static char host[8192];
static CUstream stream;

static void intact(const char *what)
{
    char value[BYTES];
    unsigned wrong = 0;

    for (int i = 0; i < 2; i++) {
        MUST(cuMemcpyDtoH(value, i ? behind : before, BYTES));
        for (unsigned j = 0; j < BYTES; j++)
            wrong += value[j] != 0x33;
    }
    printf("%s: %u bytes beside it changed\n", what, wrong);
}

#define BAD(call)                                                 \
    do {                                                          \
        CUresult bad_result = (call);                             \
        CUresult bad_later = cuCtxSynchronize();                  \
        printf("%s: %s, %s\n", #call, error_name(bad_result), error_name(bad_later)); \
    } while (0)

static CUDA_MEMCPY3D box(CUdeviceptr to, const void *from, size_t x, size_t y, size_t width, size_t height)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = 64, .srcHeight = 8,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = 100, .dstHeight = 10,
                           .dstXInBytes = x, .dstY = y, .WidthInBytes = width, .Height = height, .Depth = 1};
}

int main(void)
{
    CUcontext context = start();
    CUDA_MEMCPY3D fits, leaves;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUgraph graph;
    CUgraphNode node;

    MUST(cuMemAlloc(&before, BYTES));
    MUST(cuMemAlloc(&memory, BYTES));
    MUST(cuMemAlloc(&behind, BYTES));
    MUST(cuMemAlloc(&large, (3u << 20) + 5));
    MUST(cuMemAlloc(&gone, BYTES));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemsetD8(before, 0x33, BYTES));
    MUST(cuMemsetD8(behind, 0x33, BYTES));
    MUST(cuMemFree(gone));

    BAD(cuMemcpyHtoD(memory, host, BYTES));
    BAD(cuMemcpyHtoD(memory, host, BYTES + 1));
    BAD(cuMemcpyHtoD(memory + 999, host, 2));
    BAD(cuMemcpyHtoD(memory + 1000, host, 1));
    BAD(cuMemcpyHtoD(memory, host, 4096));
    BAD(cuMemcpyHtoDAsync(memory, host, 4096, stream));
    BAD(cuMemcpyDtoH(host, memory, BYTES + 1));
    BAD(cuMemcpyDtoHAsync(host, memory, 4096, stream));
    BAD(cuMemcpyDtoD(memory, behind, BYTES + 1));
    BAD(cuMemcpyDtoD(large, memory, BYTES + 1));
    BAD(cuMemcpyDtoDAsync(memory, large, 4096, stream));
    BAD(cuMemcpy(memory, large, 4096));
    BAD(cuMemcpyAsync(memory, (CUdeviceptr)host, 4096, stream));
    BAD(cuMemsetD8(memory, 1, BYTES + 1));
    BAD(cuMemsetD16(memory, 1, BYTES / 2 + 1));
    BAD(cuMemsetD32(memory, 1, BYTES / 4 + 1));
    BAD(cuMemsetD8Async(memory, 1, 4096, stream));
    BAD(cuMemsetD32Async(memory, 1, 1024, stream));
    BAD(cuMemsetD2D8(memory, 100, 1, 100, 10));
    BAD(cuMemsetD2D8(memory, 100, 1, 100, 11));
    BAD(cuMemsetD2D32Async(memory, 100, 1, 25, 11, stream));
    BAD(cuMemsetD8(large, 1, (3u << 20) + 5));
    BAD(cuMemsetD8(large, 1, (3u << 20) + 6));
    BAD(cuMemcpyHtoD(large + (3u << 20), host, 512));
    intact("memory");

    BAD(cuMemcpyHtoD(gone, host, 16));
    BAD(cuMemcpyDtoH(host, gone, 16));
    BAD(cuMemsetD8(gone, 1, 16));
    BAD(cuMemsetD32Async(gone, 1, 4, stream));
    BAD(cuMemcpyDtoD(memory, gone, 16));
    BAD(cuMemFree(gone));
    BAD(cuMemFree(memory + 16));

    fits = box(memory, host, 40, 2, 60, 8);
    leaves = box(memory, host, 40, 3, 60, 8);
    BAD(cuMemcpy3D(&fits));
    BAD(cuMemcpy3D(&leaves));
    BAD(cuMemcpy3DAsync(&leaves, stream));
    BAD(cuStreamWriteValue32(stream, memory + 1000, 5, 0));
    BAD(cuStreamWriteValue64(stream, memory + 1000, 5, 0));
    MUST(cuGraphCreate(&graph, 0));
    BAD(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &leaves, context));
    BAD(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &fits, context));
    fill = (CUDA_MEMSET_NODE_PARAMS){.dst = memory, .value = 1, .elementSize = 1, .width = BYTES + 1, .height = 1};
    BAD(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context));
    intact("boxes, words and nodes");

    /* The same addresses are good again when they are allocated again. */
    MUST(cuMemAlloc(&gone, 3000));
    BAD(cuMemsetD8(gone, 7, 3000));
    BAD(cuMemsetD8(gone, 7, 3001));
    MUST(cuCtxDestroy(context));
    puts("ok bounds");
    return 0;
}
