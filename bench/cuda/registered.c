/* Memory of malloc that is registered (cuMemHostRegister): a kernel reads and writes it in place through the host's pointer, and the
 * program compares. Prints how long it takes to register and to unregister it, the kernel's and copies' rates, and whether an
 * asynchronous copy returns before it is over.
 *   registered [MIB]      (default: 256)
 *   gcc -O2 -I<folder of cuda.h> bench/cuda/registered.c -o registered -lcuda */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MUST(call)                                                                 \
    do {                                                                           \
        CUresult must_result = (call);                                             \
        if (must_result != CUDA_SUCCESS) {                                         \
            const char *name = "?";                                                \
            cuGetErrorName(must_result, &name);                                    \
            printf("FAIL line %d: %s: %s\n", __LINE__, #call, name);               \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

/* Adds 1 to each of `count` numbers. */
static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry add_one(.param .u64 numbers, .param .u64 count) {\n"
                          ".reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %rd<8>;\n"
                          "ld.param.u64 %rd1, [numbers]; ld.param.u64 %rd2, [count];\n"
                          "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
                          "mul.wide.u32 %rd3, %r1, %r2; cvt.u64.u32 %rd4, %r3; add.u64 %rd3, %rd3, %rd4;\n"
                          "setp.ge.u64 %p1, %rd3, %rd2; @%p1 bra DONE;\n"
                          "shl.b64 %rd5, %rd3, 2; add.u64 %rd6, %rd1, %rd5;\n"
                          "ld.global.u32 %r4, [%rd6]; add.u32 %r4, %r4, 1; st.global.u32 [%rd6], %r4;\n"
                          "DONE: ret;\n}\n";

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(const uint32_t *numbers, size_t count, uint32_t more) {
    for (size_t i = 0; i < count; i++)
        if (numbers[i] != (uint32_t)i * 2654435761u + more) {
            printf("FAIL at %zu: %u\n", i, numbers[i]);
            exit(1);
        }
}

/* `out`: to the device. */
static void copy(const char *name, uint32_t *memory, CUdeviceptr device, size_t bytes, CUstream stream, int out) {
    double best = 1e9, returned = 0;
    for (int round = 0; round < 5; round++) {
        double begin = now();
        MUST(out ? cuMemcpyHtoDAsync(device, memory, bytes, stream) : cuMemcpyDtoHAsync(memory, device, bytes, stream));
        double call = now() - begin;
        MUST(cuStreamSynchronize(stream));
        double all = now() - begin;
        if (all < best) {
            best = all;
            returned = call;
        }
    }
    printf("%s: %.1f GB/s, the call %.1f us\n", name, (double)bytes / best / 1e9, returned * 1e6);
}

int main(int count, char **arguments) {
    size_t bytes = (size_t)(count > 1 ? atol(arguments[1]) : 256) << 20, numbers = bytes / 4;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add_one;
    CUstream stream;
    CUdeviceptr there, pointer = 0;
    int can = 0;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&add_one, module, "add_one"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&there, bytes));
    MUST(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device));
    uint32_t *memory = malloc(bytes);
    if (!memory)
        return 1;
    for (size_t i = 0; i < numbers; i++)
        memory[i] = (uint32_t)i * 2654435761u;
    copy("before, to the device", memory, there, bytes, stream, 1);

    for (uint32_t round = 0; round < 3; round++) {
        double begin = now();
        MUST(cuMemHostRegister(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
        double registered = now();
        check(memory, numbers, round);
        MUST(cuMemHostGetDevicePointer(&pointer, memory, 0));
        printf("attribute %d, the same pointer %d\n", can, pointer == (CUdeviceptr)memory);
        void *parameters[] = {&memory, &numbers};
        double launched = now();
        MUST(cuLaunchKernel(add_one, (unsigned)((numbers + 255) / 256), 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
        MUST(cuStreamSynchronize(stream));
        double done = now();
        check(memory, numbers, round + 1);
        copy("registered, to the device", memory, there, bytes, stream, 1);
        memset(memory, 0, bytes);
        copy("registered, from the device", memory, there, bytes, stream, 0);
        check(memory, numbers, round + 1);
        double ending = now();
        MUST(cuMemHostUnregister(memory));
        double ended = now();
        check(memory, numbers, round + 1);
        printf("%zu MiB: registered in %.1f ms, kernel %.1f GB/s, unregistered in %.1f ms\n", bytes >> 20, (registered - begin) * 1e3,
               2 * (double)bytes / (done - launched) / 1e9, (ended - ending) * 1e3);
    }
    free(memory);
    puts("ok registered");
    return 0;
}
