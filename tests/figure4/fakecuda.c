// A fake CUDA driver: memory is the host's, a stream is a list of things to do
// when it is synchronized. It copies as late as the API allows, so that a
// remoting layer that copies back too early is caught.
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#define PENDING 64

struct CUstream_st {
    int count;
    struct copy {
        void *to;
        const void *from;
        size_t size;
    } copies[PENDING];
};
struct CUmod_st {
    int unused;
};
struct CUfunc_st {
    int twice; // 0: "scale" (float factor), 1: "scale64" (double factor)
};

static struct CUstream_st default_stream;
static size_t allocated;

static CUstream of(CUstream stream) { return stream ? stream : &default_stream; }

CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuMemAlloc(CUdeviceptr *p, size_t size) {
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (allocated + size > 1 << 20) return CUDA_ERROR_OUT_OF_MEMORY;
    char *memory = malloc(size + 16);
    memcpy(memory, &size, sizeof size);
    allocated += size;
    *p = (CUdeviceptr)(memory + 16);
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr p) {
    char *memory = (char *)p - 16;
    size_t size;
    memcpy(&size, memory, sizeof size);
    allocated -= size;
    free(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    memcpy((void *)to, from, size);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    stream = of(stream);
    if (stream->count == PENDING) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->copies[stream->count++] = (struct copy){to, (const void *)from, size};
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    stream = of(stream);
    for (int i = 0; i < stream->count; i++) memcpy(stream->copies[i].to, stream->copies[i].from, stream->copies[i].size);
    stream->count = 0;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (strcmp(image, "fake") != 0) return CUDA_ERROR_INVALID_IMAGE;
    *module = malloc(sizeof **module);
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    static struct CUfunc_st kernels[2] = {{0}, {1}};
    (void)module;
    if (strcmp(name, "scale") == 0) *function = &kernels[0];
    else if (strcmp(name, "scale64") == 0) *function = &kernels[1];
    else return CUDA_ERROR_NOT_FOUND;
    return CUDA_SUCCESS;
}

static void run(CUfunction f, CUdeviceptr data, const void *factor, int n) {
    float *x = (float *)data;
    double by = f->twice ? *(const double *)factor : *(const float *)factor;
    for (int i = 0; i < n; i++) x[i] = (float)(x[i] * by);
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **params, void **extra) {
    (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream;
    if (gx == 0 || bx == 0) return CUDA_ERROR_INVALID_VALUE;
    if (params) {
        run(f, *(CUdeviceptr *)params[0], params[1], *(int *)params[2]);
        return CUDA_SUCCESS;
    }
    // Packed: float factor at 0, int n at 4; the data is the last thing allocated (see program.c).
    if (extra == NULL || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER || *(size_t *)extra[3] != 8) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
