/* Copies: pageable and pinned, of 1 byte to 64 MiB, odd sizes and offsets, synchronous and not; 2D and 3D. */
#include "common.h"

#include <sys/mman.h>

static const size_t sizes[] = {1, 2, 3, 7, 8, 63, 64, 65, 255, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) + 13, 8 << 20, 64 << 20};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), SLACK = 64, LARGEST = 64 << 20 };

static unsigned char *pageable_in, *pageable_out;

static void there_and_back(const char *what, unsigned char *in, unsigned char *out, CUdeviceptr first, CUdeviceptr second, CUstream stream)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < SIZES; i++) {
        size_t size = sizes[i], from = i * 5 % 17, to = i * 3 % 13, on = i * 7 % 19;

        fill_bytes(in + from, size, i + 1);
        memset(out, 0xee, size + SLACK);
        if (stream) {
            MUST(cuMemcpyHtoDAsync(first + on, in + from, size, stream));
            MUST(cuMemcpyDtoDAsync(second + to, first + on, size, stream));
            MUST(cuMemcpyDtoHAsync(out + to, second + to, size, stream));
            MUST(cuStreamSynchronize(stream));
        } else {
            MUST(cuMemcpyHtoD(first + on, in + from, size));
            MUST(cuMemcpyDtoD(second + to, first + on, size));
            MUST(cuMemcpyDtoH(out + to, second + to, size));
        }
        CHECK(memcmp(in + from, out + to, size) == 0);
        for (size_t j = 0; j < to; j++)
            CHECK(out[j] == 0xee);
        for (size_t j = to + size; j < size + SLACK; j++)
            CHECK(out[j] == 0xee);
        if (size <= 1 << 20)
            sum ^= checksum(out, size + SLACK);
    }
    printf("%s: %016llx\n", what, (unsigned long long)sum);
}

/* A pageable source may be overwritten as soon as the asynchronous copy returned. */
static void overwritten(CUdeviceptr memory, CUstream stream)
{
    for (size_t size = 1000; size <= 10000000; size *= 10) {
        memset(pageable_in, 1, size);
        MUST(cuMemcpyHtoDAsync(memory, pageable_in, size, stream));
        memset(pageable_in, 2, size);
        MUST(cuMemcpyDtoHAsync(pageable_out, memory, size, stream));
        MUST(cuStreamSynchronize(stream));
        for (size_t i = 0; i < size; i++)
            CHECK(pageable_out[i] == 1);
    }
    puts("a source overwritten after the call: as it was");
}

static void generic(CUdeviceptr memory, unsigned char *pinned)
{
    fill_bytes(pageable_in, 5000, 9);
    memset(pinned, 0, 5000);
    MUST(cuMemcpy(memory, (CUdeviceptr)(uintptr_t)pageable_in, 5000));
    MUST(cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, memory, 5000, NULL));
    MUST(cuStreamSynchronize(NULL));
    CHECK(memcmp(pageable_in, pinned, 5000) == 0);
    memset(pageable_out, 0, 5000);
    MUST(cuMemcpy((CUdeviceptr)(uintptr_t)pageable_out, (CUdeviceptr)(uintptr_t)pinned, 5000));
    CHECK(memcmp(pageable_in, pageable_out, 5000) == 0);
    puts("generic copies: equal");
}

static void boxes(CUdeviceptr memory)
{
    CUdeviceptr pitched;
    size_t pitch;
    enum { WIDTH = 300, HEIGHT = 40, LINE = 333 };

    MUST(cuMemAllocPitch(&pitched, &pitch, WIDTH, HEIGHT, 4));
    printf("pitch at least the width, aligned: %d\n", pitch >= WIDTH && pitch % 32 == 0);
    fill_bytes(pageable_in, LINE * HEIGHT, 3);
    memset(pageable_out, 0, LINE * HEIGHT);
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pageable_in, .srcPitch = LINE, .srcXInBytes = 7, .srcY = 2,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = pitched, .dstPitch = pitch, .dstXInBytes = 11, .dstY = 1,
                        .WidthInBytes = 201, .Height = 33};
    MUST(cuMemsetD8(pitched, 0, pitch * HEIGHT));
    MUST(cuMemcpy2D(&in));
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = pitched, .srcPitch = pitch,
                         .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = pageable_out, .dstPitch = LINE,
                         .WidthInBytes = WIDTH, .Height = HEIGHT};
    MUST(cuMemcpy2DAsync(&out, NULL));
    MUST(cuStreamSynchronize(NULL));
    for (int y = 0; y < 33; y++)
        CHECK(memcmp(pageable_out + (y + 1) * LINE + 11, pageable_in + (y + 2) * LINE + 7, 201) == 0);
    printf("2D: %016llx\n", (unsigned long long)checksum(pageable_out, LINE * HEIGHT));

    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pageable_in, .srcPitch = 50, .srcHeight = 20,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .dstPitch = 64, .dstHeight = 32,
                         .dstXInBytes = 3, .dstY = 2, .dstZ = 1, .WidthInBytes = 40, .Height = 16, .Depth = 5};
    MUST(cuMemsetD8(memory, 0, 64 * 32 * 8));
    MUST(cuMemcpy3D(&box));
    MUST(cuMemcpyDtoH(pageable_out, memory, 64 * 32 * 8));
    for (int z = 0; z < 5; z++)
        for (int y = 0; y < 16; y++)
            CHECK(memcmp(pageable_out + ((z + 1) * 32 + y + 2) * 64 + 3, pageable_in + (z * 20 + y) * 50, 40) == 0);
    printf("3D: %016llx\n", (unsigned long long)checksum(pageable_out, 64 * 32 * 8));
    in.dstPitch = 100;
    TELL(cuMemcpy2D(&in));
    MUST(cuMemFree(pitched));
}

static void fills(CUdeviceptr memory)
{
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemsetD8(memory, 0x11, 1000));
    MUST(cuMemsetD16(memory + 100, 0x2233, 50));
    MUST(cuMemsetD32(memory + 300, 0x44556677, 25));
    MUST(cuMemsetD2D8(memory + 500, 50, 0x88, 20, 4));
    MUST(cuMemsetD2D16(memory + 700, 50, 0x99aa, 10, 3));
    MUST(cuMemsetD2D32(memory + 852, 40, 0xbbccddee, 5, 3));
    MUST(cuCtxSynchronize());
    MUST(cuMemsetD8Async(memory + 11, 0x01, 3, stream));
    MUST(cuMemsetD16Async(memory + 20, 0x0203, 3, stream));
    MUST(cuMemsetD32Async(memory + 40, 0x04050607, 2, stream));
    MUST(cuMemsetD2D8Async(memory + 60, 8, 0x08, 3, 2, stream));
    MUST(cuMemsetD2D16Async(memory + 80, 8, 0x0910, 2, 2, stream));
    MUST(cuMemsetD2D32Async(memory + 200, 16, 0x11121314, 2, 3, stream));
    MUST(cuMemcpyDtoHAsync(pageable_out, memory, 1000, stream));
    MUST(cuStreamSynchronize(stream));
    printf("fills: %016llx\n", (unsigned long long)checksum(pageable_out, 1000));
    CHECK(pageable_out[100] == 0x33 && pageable_out[101] == 0x22 && pageable_out[300] == 0x77 && pageable_out[14] == 0x11);
    TELL(cuMemsetD32(memory + 2, 0, 1));
    TELL(cuMemsetD16(memory + 1, 0, 1));
    MUST(cuStreamDestroy(stream));
}

int main(void)
{
    CUcontext context = start();
    CUdeviceptr first, second, alias;
    CUstream stream;
    unsigned char *pinned_in, *pinned_out, *registered;
    unsigned flags;

    pageable_in = malloc(LARGEST + SLACK);
    pageable_out = malloc(LARGEST + SLACK);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&first, LARGEST + SLACK));
    MUST(cuMemAlloc(&second, LARGEST + SLACK));
    MUST(cuMemAllocHost((void **)&pinned_in, LARGEST + SLACK));
    MUST(cuMemHostAlloc((void **)&pinned_out, LARGEST + SLACK, CU_MEMHOSTALLOC_PORTABLE));
    there_and_back("pageable", pageable_in, pageable_out, first, second, NULL);
    there_and_back("pageable, asynchronous", pageable_in, pageable_out, first, second, stream);
    there_and_back("pinned", pinned_in, pinned_out, first, second, NULL);
    there_and_back("pinned, asynchronous", pinned_in, pinned_out, first, second, stream);
    overwritten(first, stream);
    generic(first, pinned_out);
    boxes(first);
    fills(first);

    registered = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(registered != MAP_FAILED);
    MUST(cuMemHostRegister(registered, 1 << 20, 0));
    TELL(cuMemHostRegister(registered, 4096, 0));
    /* With a node of another machine the device cannot look into the application's own memory, and says so. */
    CUresult mapped = cuMemHostGetDevicePointer(&alias, registered, 0);
    CHECK(mapped == CUDA_SUCCESS ? alias == (CUdeviceptr)(uintptr_t)registered : mapped == CUDA_ERROR_NOT_SUPPORTED);
    fill_bytes(registered, 1 << 20, 77);
    MUST(cuMemcpyHtoDAsync(first, registered, 1 << 20, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(pageable_out, first, 1 << 20));
    CHECK(memcmp(registered, pageable_out, 1 << 20) == 0);
    MUST(cuMemHostUnregister(registered));
    TELL(cuMemHostUnregister(registered));
    puts("registered: equal");
    MUST(cuMemHostGetFlags(&flags, pinned_out));
    printf("portable: %d\n", (flags & CU_MEMHOSTALLOC_PORTABLE) != 0);

    MUST(cuMemFreeHost(pinned_in));
    MUST(cuMemFreeHost(pinned_out));
    MUST(cuMemFree(first));
    MUST(cuMemFree(second));
    MUST(cuStreamDestroy(stream));
    MUST(cuCtxDestroy(context));
    puts("ok transfers");
    return 0;
}
