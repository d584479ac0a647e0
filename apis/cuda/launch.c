/* Launches: which function is meant, its parameters in one piece, and whether the call may be left alone. */
#include "guest.h"
#include <stdlib.h>
#include <string.h>

/* ---- Kernels and functions ------------------------------------------------------------------ */

void cuda_note_kernel(CUkernel kernel) {
    struct cuda_object *object = cuda_object_of(kernel);
    if (!object)
        return;
    object->kind = CUDA_KERNEL;
    __atomic_store_n(&object->function, NULL, __ATOMIC_RELEASE);
}

void cuda_note_kernels(const CUkernel *kernels, unsigned int count) {
    for (unsigned int i = 0; kernels && i < count; i++)
        cuda_note_kernel(kernels[i]);
}

int cuda_is_kernel(CUfunction function) {
    const struct cuda_object *object = cuda_object_of(function);
    return object && object->kind == CUDA_KERNEL;
}

/* What the kernel is in the current context; a function is itself. */
CUfunction cuda_function(CUfunction value) {
    struct cuda_object *object = cuda_object_of(value);
    if (!object || object->kind != CUDA_KERNEL)
        return value;
    CUcontext context = cuda_current_context();
    CUfunction function = __atomic_load_n(&object->function, __ATOMIC_ACQUIRE);
    if (function && object->function_context == context)
        return function;
    if (cuKernelGetFunction(&function, (CUkernel)value) != CUDA_SUCCESS)
        return NULL;
    object->function_context = context;
    __atomic_store_n(&object->function, function, __ATOMIC_RELEASE);
    return function;
}

/* ---- Parameters ----------------------------------------------------------------------------- */

/* The buffer that an application packed itself. */
static const void *packed(void **extra, size_t *bytes) {
    const void *buffer = NULL;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *bytes = *(size_t *)extra[1];
        else
            break;
    }
    return buffer;
}

/* The parameters as the kernel sees them: in `buffer`, which has room for the most, or where the application has them. */
CUresult cuda_pack(CUfunction function, void **parameters, void **extra, unsigned char *buffer, const void **result,
                   size_t *bytes) {
    const struct cuda_layout *layout = layout_of(function);
    if (!layout)
        return CUDA_ERROR_INVALID_HANDLE;
    if (extra && !parameters) {
        *bytes = 0;
        *result = packed(extra, bytes);
        return *bytes > CUDA_PARAMETER_BYTES || (*bytes && !*result) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    if (layout->count && !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    if (layout->bytes > CUDA_PARAMETER_BYTES)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (uint32_t i = 0; i < layout->count; i++)
        memcpy(buffer + layout->offset[i], parameters[i], layout->size[i]);
    *result = buffer;
    *bytes = layout->bytes;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction value, aviary_launch_shape shape, CUstream stream, void **parameters, void **extra,
                       const CUlaunchAttribute *attributes) {
    _Alignas(16) unsigned char buffer[CUDA_PARAMETER_BYTES];
    const void *from = NULL;
    size_t bytes = 0;
    CUfunction function = cuda_function(value);
    CUresult status = cuda_pack(function, parameters, extra, buffer, &from, &bytes);
    return status == CUDA_SUCCESS ? aviaryLaunch(function, shape, stream, from, bytes, attributes) : status;
}

CUresult cuda_launch(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                     unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters,
                     void **extra) {
    aviary_launch_shape shape = {{gx, gy, gz}, {bx, by, bz}, shared, 0};
    return launch(function, shape, stream, parameters, extra, NULL);
}

CUresult cuda_launch_cooperative(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                 unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                                 void **parameters) {
    CUlaunchAttribute together = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value = {.cooperative = 1}};
    aviary_launch_shape shape = {{gx, gy, gz}, {bx, by, bz}, shared, 1};
    return launch(function, shape, stream, parameters, NULL, &together);
}

CUresult cuda_launch_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    enum { MOST_ATTRIBUTES = 64 };
    if (!config || config->numAttrs > MOST_ATTRIBUTES || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    aviary_launch_shape shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                                 {config->blockDimX, config->blockDimY, config->blockDimZ},
                                 config->sharedMemBytes,
                                 config->numAttrs};
    return launch(function, shape, config->hStream, parameters, extra, config->attrs);
}

/* ---- Launches that cannot be refused --------------------------------------------------------- */

static uint64_t threads_of(aviary_launch_shape shape) {
    return (uint64_t)shape.block[0] * shape.block[1] * shape.block[2];
}

/* A mark of the attributes; 0: there are none. */
static uint64_t mark(aviary_launch_shape shape, const CUlaunchAttribute *attributes) {
    const unsigned char *bytes = (const unsigned char *)attributes;
    uint64_t hash = shape.attribute_count ? 14695981039346656037ull : 0;
    for (size_t i = 0; i < shape.attribute_count * sizeof *attributes; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

/* A grid of clusters, or one whose blocks wait for each other, has to be judged as a whole. */
static int is_plain_grid(aviary_launch_shape shape) {
    return shape.grid[0] && shape.grid[1] && shape.grid[2] && shape.grid[0] < 1u << 31 && shape.grid[1] < 1u << 16
           && shape.grid[2] < 1u << 16 && shape.block[0] && shape.block[1] && shape.block[2] && shape.block[2] <= 64;
}

/* A buffer that the application packed may have another size than the parameters: of that the driver judges. */
static int repeats(CUfunction function, aviary_launch_shape shape, size_t bytes, const CUlaunchAttribute *attributes) {
    const struct cuda_object *object = cuda_object_of(function);
    if (!object || !object->layout || bytes != object->layout->bytes || !is_plain_grid(shape) || threads_of(shape) > object->accepted_threads
        || shape.shared_bytes > object->accepted_shared)
        return 0;
    if (shape.attribute_count == 0)
        return 1;
    return object->accepted_mark == mark(shape, attributes)
           && memcmp(object->accepted_grid, shape.grid, sizeof shape.grid) == 0
           && memcmp(object->accepted_block, shape.block, sizeof shape.block) == 0;
}

/* Whether this thread's launch under way is one of those: it teaches nothing new. */
static __thread int repeated;

int cuda_launch_repeats(CUfunction function, aviary_launch_shape shape, size_t bytes, const CUlaunchAttribute *attributes) {
    return repeated = repeats(function, shape, bytes, attributes);
}

void cuda_note_launch(CUfunction function, aviary_launch_shape shape, const CUlaunchAttribute *attributes) {
    struct cuda_object *object = repeated ? NULL : cuda_object_of(function);
    if (!object)
        return;
    if (shape.attribute_count) {
        object->accepted_mark = mark(shape, attributes);
        memcpy(object->accepted_grid, shape.grid, sizeof shape.grid);
        memcpy(object->accepted_block, shape.block, sizeof shape.block);
    }
    /* Both bounds come from one launch: a larger one of the two alone says nothing about the other. */
    if (threads_of(shape) >= object->accepted_threads && shape.shared_bytes >= object->accepted_shared) {
        object->accepted_threads = threads_of(shape);
        object->accepted_shared = shape.shared_bytes;
    }
}
