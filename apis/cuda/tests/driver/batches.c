/* Several copies in one call; pools by what they are for; what the compiler tells in its options' values; managed memory's
 * attributes. */
#include "common.h"
#include "kernels.h"

enum { COUNT = 5, BYTES = 3000 };

static void copies(CUstream stream)
{
    static unsigned char in[COUNT][BYTES], out[COUNT][BYTES];
    CUdeviceptr memory[COUNT], to[COUNT], from[COUNT], back[COUNT];
    size_t sizes[COUNT], first[] = {0, 3};
    CUmemcpyAttributes attributes[2];

    memset(attributes, 0, sizeof(attributes));
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    for (unsigned i = 0; i < COUNT; i++) {
        MUST(cuMemAlloc(&memory[i], BYTES));
        fill_bytes(in[i], BYTES, i);
        to[i] = memory[i];
        from[i] = (CUdeviceptr)in[i];
        back[i] = (CUdeviceptr)out[i];
        sizes[i] = BYTES - i;
    }
    TELL(cuMemcpyBatchAsync(to, from, sizes, COUNT, attributes, first, 2, stream));
    TELL(cuMemcpyBatchAsync(back, to, sizes, COUNT, attributes, first, 2, stream));
    MUST(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < COUNT; i++)
        printf("%d", memcmp(in[i], out[i], sizes[i]) == 0 && !out[i][BYTES - 1] == (i > 0));
    puts("");
    TELL(cuMemcpyBatchAsync(to, from, sizes, COUNT, attributes, first, 2, NULL));
    TELL(cuMemcpyBatchAsync(to, from, sizes, 0, attributes, first, 2, stream));
    TELL(cuMemcpyBatchAsync(to, from, sizes, COUNT, attributes, first, 0, stream));
    first[1] = 5;
    TELL(cuMemcpyBatchAsync(to, from, sizes, COUNT, attributes, first, 2, stream));
    attributes[0].srcAccessOrder = (CUmemcpySrcAccessOrder)0;
    TELL(cuMemcpyBatchAsync(to, from, sizes, COUNT, attributes, first, 1, stream));
    sizes[2] = BYTES + 1;
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    TELL(cuMemcpyBatchAsync(to, from, sizes, COUNT, attributes, first, 1, stream));

    CUDA_MEMCPY3D_BATCH_OP boxes[2];
    memset(boxes, 0, sizeof(boxes));
    for (unsigned i = 0; i < 2; i++) {
        boxes[i].src.type = boxes[i].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        boxes[i].src.op.ptr.ptr = (CUdeviceptr)in[i];
        boxes[i].src.op.ptr.rowLength = 100;
        boxes[i].dst.op.ptr.ptr = memory[i];
        boxes[i].dst.op.ptr.rowLength = 200;
        boxes[i].extent = (CUextent3D){50, 10, 1};
        boxes[i].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    }
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemsetD8(memory[1], 0, BYTES));
    MUST(cuCtxSynchronize());
    TELL(cuMemcpy3DBatchAsync(2, boxes, 0, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(out[1], memory[1], BYTES));
    printf("boxes: %d %d\n", memcmp(out[1] + 200, in[1] + 100, 50), out[1][250]);
    for (unsigned i = 0; i < COUNT; i++)
        MUST(cuMemFree(memory[i]));
}

static void pools(CUstream stream)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemoryPool pool, found, standard;
    CUdeviceptr memory;
    CUmemAccess_flags flags;
    CUmemAccessDesc access = {.location = location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    cuuint64_t value;

    MUST(cuMemGetDefaultMemPool(&standard, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    MUST(cuDeviceGetDefaultMemPool(&found, 0));
    CHECK(found == standard);
    TELL(cuMemGetMemPool(&found, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    MUST(cuMemPoolCreate(&pool, &properties));
    MUST(cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    MUST(cuMemGetMemPool(&found, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(found == pool);
    MUST(cuMemAllocAsync(&memory, 5000, stream));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    printf("used %lu\n", (unsigned long)value);
    MUST(cuMemsetD8Async(memory, 1, 5000, stream));
    /* By the function for all memory. */
    MUST(cuMemFree(memory));
    TELL(cuMemFree(memory));
    MUST(cuMemPoolTrimTo(pool, 0));
    MUST(cuMemPoolSetAccess(pool, &access, 1));
    (void)cuMemPoolGetAccess(&flags, pool, &location);
    MUST(cuMemPoolDestroy(pool));
    MUST(cuMemGetMemPool(&found, &location, CU_MEM_ALLOCATION_TYPE_PINNED));
    CHECK(found == standard);
}

static void compiler(void)
{
    char information[512], errors[512];
    CUjit_option options[] = {CU_JIT_WALL_TIME, CU_JIT_THREADS_PER_BLOCK, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                              CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_TARGET_FROM_CUCONTEXT,
                              CU_JIT_CACHE_MODE, CU_JIT_POSITION_INDEPENDENT_CODE, CU_JIT_MAX_THREADS_PER_BLOCK};
    void *values[] = {(void *)0xffffffff /* not a number */, (void *)100, information, (void *)sizeof(information), errors, (void *)sizeof(errors), NULL,
                      (void *)CU_JIT_CACHE_OPTION_NONE, (void *)1, (void *)256};
    CUmodule module;
    float milliseconds;

    MUST(cuModuleLoadDataEx(&module, several, 10, options, values));
    memcpy(&milliseconds, &values[0], sizeof(milliseconds));
    printf("the time is told: %d; compiled for %lu threads\n", milliseconds >= 0, (unsigned long)values[1]);
    MUST(cuModuleUnload(module));
}

int main(void)
{
    CUcontext context = start();
    CUstream stream;
    int value;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    copies(stream);
    pools(stream);
    compiler();
    /* Atomic operations of the CPU and of the device on managed memory are none for the other. */
    MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0));
    printf("native atomics %d\n", value);
    MUST(cuCtxDestroy(context));
    puts("ok batches");
    return 0;
}
