/* Memory of the program's own that it registers: kernels use it in place, copies of it are those of page-locked memory, and before,
 * meanwhile and afterwards it is the program's memory like any other. */
#define _GNU_SOURCE
#include "common.h"
#include "kernels.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LARGE = 9 << 20 };

static CUfunction fill, add;
static CUdeviceptr device;

/* Numbers from `first` on, written by a kernel. */
static void fill_numbers(unsigned int *to, unsigned int first, int count)
{
    void *parameters[] = {&to, &first, &count};

    MUST(cuLaunchKernel(fill, 16, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxSynchronize());
}

static bool are_numbers(const unsigned int *from, unsigned int first, int count)
{
    for (int i = 0; i < count; i++)
        if (from[i] != first + (unsigned int)i)
            return false;
    return true;
}

static void *pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED);
    return memory;
}

static void questions(char *memory, size_t bytes)
{
    CUdeviceptr pointer = 0, start = 0;
    unsigned int type = 0, mapped = 0, flags = 0;
    size_t size = 0;
    void *host = NULL;

    MUST(cuMemHostGetDevicePointer(&pointer, memory, 0));
    CHECK(pointer == (CUdeviceptr)memory);
    MUST(cuMemHostGetDevicePointer(&pointer, memory + bytes - 1, 0));
    CHECK(pointer == (CUdeviceptr)memory + bytes - 1);
    MUST(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (CUdeviceptr)memory));
    MUST(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, (CUdeviceptr)memory + 5));
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)memory));
    MUST(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, (CUdeviceptr)memory));
    MUST(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (CUdeviceptr)memory + 5));
    MUST(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, (CUdeviceptr)memory));
    printf("pointers %d %d, type %u, mapped %u, range %d %d\n", pointer == (CUdeviceptr)memory, host == memory + 5, type, mapped,
           start == (CUdeviceptr)memory, size == bytes);
    TELL(cuMemHostGetFlags(&flags, memory));
    TELL(cuMemFreeHost(memory));
}

static void wrong_calls(void)
{
    char *memory = pages(4 * PAGE), *other = NULL, *gone = pages(PAGE);

    TELL(cuMemHostRegister(NULL, PAGE, 0));
    TELL(cuMemHostRegister(memory, 0, 0));
    TELL(cuMemHostRegister(memory, SIZE_MAX, 0));
    TELL(cuMemHostRegister((void *)device, PAGE, 0));
    munmap(gone, PAGE);
    TELL(cuMemHostRegister(gone, PAGE, 0));
    munmap(memory + PAGE, PAGE);
    TELL(cuMemHostRegister(memory, 4 * PAGE, 0));
    MUST(cuMemHostAlloc((void **)&other, PAGE, 0));
    TELL(cuMemHostRegister(other, PAGE, 0));
    MUST(cuMemFreeHost(other));
    MUST(cuMemHostRegister(memory + 2 * PAGE, 2 * PAGE, 0));
    TELL(cuMemHostRegister(memory + 3 * PAGE, PAGE, 0));
    TELL(cuMemHostRegister(memory + 2 * PAGE, 1, 0));
    TELL(cuMemHostUnregister(memory + 3 * PAGE));
    MUST(cuMemHostUnregister(memory + 2 * PAGE));
    TELL(cuMemHostUnregister(memory + 2 * PAGE));
    TELL(cuMemHostUnregister(NULL));
    munmap(memory, 4 * PAGE);
}

/* A kernel reads two arrays and writes a third, all of the program's own memory. */
static void added(void)
{
    enum { COUNT = 1000 };
    float *memory = pages(3 * PAGE), *a = memory, *b = a + COUNT, *sums = b + COUNT;
    int count = COUNT;
    void *parameters[] = {&a, &b, &sums, &count};

    MUST(cuMemHostRegister(memory, 3 * PAGE, 0));
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i;
        b[i] = 0.25f;
    }
    MUST(cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemHostUnregister(memory));
    for (int i = 0; i < COUNT; i++)
        CHECK(sums[i] == (float)i + 0.25f);
    munmap(memory, 3 * PAGE);
    puts("added: equal");
}

/* Kernels and copies; the memory keeps what it holds through all of it. */
static void in_place(unsigned int *numbers, int count)
{
    size_t bytes = (size_t)count * 4;
    unsigned int *back = malloc(bytes);
    uint64_t before;
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill_bytes(numbers, bytes, 5);
    before = checksum(numbers, bytes);
    MUST(cuMemHostRegister(numbers, bytes, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    CHECK(checksum(numbers, bytes) == before);
    questions((char *)numbers, bytes);

    MUST(cuMemcpyHtoDAsync(device, numbers, bytes, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH(back, device, bytes));
    CHECK(checksum(back, bytes) == before);
    fill_numbers(numbers, 7, count / 2);
    CHECK(are_numbers(numbers, 7, count / 2));
    numbers[0] = 1000;
    MUST(cuMemcpy(device, (CUdeviceptr)numbers, bytes));
    MUST(cuMemcpyDtoH(back, device, bytes));
    CHECK(memcmp(back, numbers, bytes) == 0 && back[0] == 1000 && back[1] == 8);
    fill_numbers((unsigned int *)device, 100, count);
    MUST(cuMemcpyDtoHAsync(numbers + 1, device, bytes - 4, stream));
    MUST(cuStreamSynchronize(stream));
    CHECK(numbers[0] == 1000 && are_numbers(numbers + 1, 100, count - 1));
    MUST(cuMemsetD32((CUdeviceptr)numbers, 9, 3));
    MUST(cuStreamWriteValue32(stream, (CUdeviceptr)&numbers[1], 77, 0));
    MUST(cuStreamSynchronize(stream));
    MUST(cuCtxSynchronize());
    printf("%u %u %u %u\n", numbers[0], numbers[1], numbers[2], numbers[3]);

    before = checksum(numbers, bytes);
    MUST(cuMemHostUnregister(numbers));
    CHECK(checksum(numbers, bytes) == before);
    numbers[count - 1] = 3;
    CHECK(numbers[count - 1] == 3);
    MUST(cuStreamDestroy(stream));
    free(back);
}

/* Of memory in whose pages other memory is, too, copies are possible in any case; ended in either order. */
static void shared_page(int second_first)
{
    char *memory = pages(3 * PAGE);
    unsigned int *a = (unsigned int *)(memory + 1000), *b = (unsigned int *)(memory + PAGE + 2000);

    memset(memory, 42, 3 * PAGE);
    MUST(cuMemHostRegister(a, PAGE + 1000 - 8, 0));
    MUST(cuMemHostRegister(b, PAGE, 0));
    fill_numbers((unsigned int *)device, 1, 1200);
    MUST(cuMemcpyDtoH(a, device, 4800));
    fill_numbers((unsigned int *)device, 5000, 1000);
    MUST(cuMemcpyDtoH(b, device, 4000));
    MUST(cuMemHostUnregister(second_first ? b : a));
    MUST(cuMemHostUnregister(second_first ? a : b));
    CHECK(are_numbers(a, 1, 1200) && are_numbers(b, 5000, 1000));
    CHECK(memory[0] == 42 && memory[999] == 42 && memory[PAGE + 1999] == 42 && memory[3 * PAGE - 1] == 42);
    munmap(memory, 3 * PAGE);
    printf("shared page: ended %s first\n", second_first ? "the second" : "the first");
}

static unsigned int *counters;
static int counting = 1;

static void *count_up(void *number)
{
    uintptr_t first = (uintptr_t)number;
    unsigned int rounds = 0;

    while (__atomic_load_n(&counting, __ATOMIC_ACQUIRE)) {
        for (uintptr_t i = first; i < LARGE / 4; i += 1024)
            counters[i]++;
        rounds++;
    }
    return (void *)(uintptr_t)rounds;
}

/* No write of another thread is lost. */
static void writers(void)
{
    pthread_t threads[3];

    counters = pages(LARGE);
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, count_up, (void *)i) == 0);
    for (int round = 0; round < 10; round++) {
        MUST(cuMemHostRegister(counters, LARGE, 0));
        usleep(1000);
        MUST(cuMemHostUnregister(counters));
    }
    __atomic_store_n(&counting, 0, __ATOMIC_RELEASE);
    for (uintptr_t i = 0; i < 3; i++) {
        void *rounds;
        pthread_join(threads[i], &rounds);
        for (uintptr_t n = i; n < LARGE / 4; n += 1024)
            CHECK(counters[n] == (unsigned int)(uintptr_t)rounds);
    }
    munmap(counters, LARGE);
    puts("writers: nothing is lost");
}

/* A child has what was there, for itself. */
static void forks(void)
{
    unsigned int *numbers = pages(LARGE);
    int status = 0, told[2];
    char byte;

    CHECK(pipe(told) == 0);
    for (int i = 0; i < LARGE / 4; i++)
        numbers[i] = (unsigned int)i;
    MUST(cuMemHostRegister(numbers, LARGE, 0));
    pid_t child = fork();
    if (child == 0) {
        /* The parent has written by now. */
        bool kept = read(told[0], &byte, 1) == 1 && are_numbers(numbers, 0, LARGE / 4);
        memset(numbers, 9, LARGE);
        _exit(kept ? 7 : 1);
    }
    fill_numbers(numbers, 50, 1000);
    numbers[5000] = 1;
    CHECK(write(told[1], "x", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    CHECK(are_numbers(numbers, 50, 1000) && numbers[5000] == 1 && numbers[5001] == 5001);
    fill_numbers(numbers, 60, 1000);
    MUST(cuMemHostUnregister(numbers));
    CHECK(are_numbers(numbers, 60, 1000));
    munmap(numbers, LARGE);
    close(told[0]);
    close(told[1]);
}

/* What the program maps in place of registered memory is not touched. */
static void unmapped(void)
{
    char *memory = pages(8 * PAGE), *other;

    memset(memory, 1, 8 * PAGE);
    MUST(cuMemHostRegister(memory, 8 * PAGE, 0));
    munmap(memory + PAGE, 4 * PAGE);
    other = mmap(memory + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(other == memory + 2 * PAGE);
    memset(other, 2, PAGE);
    MUST(cuMemHostUnregister(memory));
    CHECK(memory[0] == 1 && memory[5 * PAGE] == 1 && other[0] == 2 && other[PAGE - 1] == 2);
    CHECK(msync(memory + PAGE, PAGE, MS_ASYNC) != 0);
    munmap(memory, 8 * PAGE);
    puts("unmapped: others are kept");
}

/* Memory of malloc that is registered, and then freed, or made larger or smaller, also before it is unregistered. */
static void allocated(void)
{
    for (int round = 0; round < 40; round++) {
        size_t bytes = 1000 + (size_t)round * 30011;
        char *memory = malloc(bytes), *beside = malloc(bytes), *other;
        volatile uintptr_t registered = (uintptr_t)memory;
        memset(memory, round, bytes);
        memset(beside, 99, bytes);
        MUST(cuMemHostRegister(memory, bytes, 0));
        MUST(cuMemHostRegister(beside, bytes, 0));
        if (round % 2)
            MUST(cuMemHostUnregister(memory));
        other = realloc(memory, 2 * bytes + 100000);
        memset(other + bytes, 5, bytes + 100000);
        for (size_t i = 0; i < bytes; i += 97)
            CHECK(other[i] == round && beside[i] == 99);
        if (!(round % 2))
            MUST(cuMemHostUnregister((void *)registered));
        for (size_t i = 0; i < bytes; i += 97)
            CHECK(other[i] == round && other[bytes + i] == 5);
        MUST(cuMemHostUnregister(beside));
        free(beside);
        free(other);
    }
    puts("allocated: contents are kept");
}

int main(void)
{
    CUcontext context = start();
    CUmodule library, module;
    char *heap, *file;
    int can = 0;

    /* Blocks of this size are always mappings of their own. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    MUST(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0));
    printf("the host's pointer is the device's: %d\n", can);
    MUST(cuModuleLoadData(&library, several));
    MUST(cuModuleGetFunction(&fill, library, "fill"));
    MUST(cuModuleLoadData(&module, vector_add));
    MUST(cuModuleGetFunction(&add, module, "vector_add"));
    MUST(cuMemAlloc(&device, LARGE));
    wrong_calls();
    in_place(pages(LARGE), LARGE / 4);
    /* A block that malloc maps for itself, from an address in a page on, also with another alignment. */
    CHECK(posix_memalign((void **)&heap, 64, 300000) == 0);
    in_place((unsigned int *)heap, 75000);
    free(heap);
    heap = malloc(LARGE);
    in_place((unsigned int *)heap, LARGE / 4);
    in_place((unsigned int *)heap, LARGE / 4);
    free(heap);
    added();
    shared_page(0);
    shared_page(1);
    writers();
    forks();
    unmapped();
    allocated();

    /* Of several processes' memory copies are possible in any case. */
    file = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(file != MAP_FAILED);
    memset(file, 6, LARGE);
    MUST(cuMemHostRegister(file, LARGE, 0));
    MUST(cuMemcpyHtoD(device, file, LARGE));
    memset(file, 0, LARGE);
    MUST(cuMemcpyDtoH(file, device, LARGE));
    CHECK(file[0] == 6 && file[LARGE - 1] == 6);
    MUST(cuMemHostUnregister(file));

    /* What a context had registered ends with it. */
    MUST(cuMemHostRegister(file, PAGE, 0));
    heap = pages(PAGE);
    heap[0] = 5;
    MUST(cuMemHostRegister(heap, PAGE, 0));
    MUST(cuModuleUnload(library));
    MUST(cuMemFree(device));
    MUST(cuCtxDestroy(context));
    CHECK(heap[0] == 5);
    heap[0] = 6;
    context = start();
    MUST(cuMemHostRegister(heap, PAGE, 0));
    CHECK(heap[0] == 6);
    MUST(cuMemHostUnregister(heap));
    TELL(cuMemHostUnregister(heap));
    CHECK(heap[0] == 6);
    MUST(cuCtxDestroy(context));
    puts("ok registered");
    return 0;
}
