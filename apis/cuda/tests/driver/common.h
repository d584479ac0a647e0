/* Code that the test programs share. Each prints deterministic lines, the same directly and remoted. */
#ifndef CUDA_TESTS_COMMON_H
#define CUDA_TESTS_COMMON_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lines printed before a crash shall be seen. */
__attribute__((constructor)) static void print_lines(void) { setvbuf(stdout, NULL, _IOLBF, 0); }

static inline const char *error_name(CUresult error)
{
    const char *name = NULL;

    cuGetErrorName(error, &name);
    return name ? name : "(unknown)";
}

/* Ends the program unless a call succeeds. */
#define MUST(call)                                                                                \
    do {                                                                                          \
        CUresult must_result = (call);                                                            \
        if (must_result != CUDA_SUCCESS) {                                                        \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call, error_name(must_result));   \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* Ends the program unless something holds. */
#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

/* Prints what a call answers. */
#define TELL(call) printf("%s: %s\n", #call, error_name(call))

/* A context of its own on the first device. */
static inline CUcontext start(void)
{
    CUcontext context;
    CUdevice device;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuCtxCreate(&context, NULL, 0, device));
    return context;
}

/* A checksum, for what is too long to print. */
static inline uint64_t checksum(const void *bytes, size_t size)
{
    uint64_t sum = 14695981039346656037u;

    for (size_t i = 0; i < size; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return sum;
}

/* The same sequence of bytes for the same seed. */
static inline void fill_bytes(void *bytes, size_t size, unsigned seed)
{
    uint32_t state = seed * 2654435761u + 1;

    for (size_t i = 0; i < size; i++) {
        state = state * 1664525 + 1013904223;
        ((unsigned char *)bytes)[i] = (unsigned char)(state >> 24);
    }
}

#endif
