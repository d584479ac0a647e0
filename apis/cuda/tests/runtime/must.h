/* A call of the runtime that must succeed, or the program ends with the place and the error. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(call)                                                                                          \
    do {                                                                                                    \
        cudaError_t must_result = (call);                                                                   \
        if (must_result != cudaSuccess) {                                                                   \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(must_result));       \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)
