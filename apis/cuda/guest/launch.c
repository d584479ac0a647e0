/* Launches: which function is meant, its parameters in one piece, and whether the call may be left alone. */
#include "guest/functions.h"
#include "guest/waiting.h"
#include <stdlib.h>
#include <string.h>

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
    const struct cuda_layout *layout = cuda_layout_of(function);
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
    if (cuda_lacks_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    CUfunction function = cuda_function(value);
    CUresult status = cuda_pack(function, parameters, extra, buffer, &from, &bytes);
    if (status == CUDA_SUCCESS)
        status = cuda_before_kernels();
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

/* How much of an attribute's value its kind uses: the rest may be anything. 0: unknown. */
static size_t used_bytes(CUlaunchAttributeID id) {
    switch (id) {
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: return sizeof(((CUlaunchAttributeValue *)0)->clusterDim);
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        return sizeof(((CUlaunchAttributeValue *)0)->preferredClusterDim);
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return sizeof(((CUlaunchAttributeValue *)0)->accessPolicyWindow);
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return sizeof(((CUlaunchAttributeValue *)0)->memSyncDomainMap);
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return sizeof(int);
    default: return 0;
    }
}

static uint64_t hashed(uint64_t hash, const void *data, size_t size) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 1099511628211ull;
    return hash;
}

/* True if clusters of that size fill the grid. */
static int fills(aviary_launch_shape shape, unsigned int x, unsigned int y, unsigned int z) {
    return x && y && z && shape.grid[0] % x == 0 && shape.grid[1] % y == 0 && shape.grid[2] % z == 0;
}

/* A mark of a launch with attributes: launches with the same mark are accepted or refused alike. The grid counts where
 * its blocks wait for each other, or where nobody here knows what an attribute says. 0: the driver has to judge. */
static uint64_t shape_hash(aviary_launch_shape shape, const CUlaunchAttribute *attributes) {
    uint64_t hash = hashed(14695981039346656037ull, shape.block, sizeof shape.block);
    hash = hashed(hash, &shape.shared_bytes, sizeof shape.shared_bytes);
    int whole = 0;
    for (unsigned int i = 0; i < shape.attribute_count; i++) {
        const CUlaunchAttributeValue *value = &attributes[i].value;
        size_t used = used_bytes(attributes[i].id);
        hash = hashed(hash, &attributes[i].id, sizeof attributes[i].id);
        hash = hashed(hash, value, used ? used : sizeof *value);
        whole |= !used || attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        if ((attributes[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
             && !fills(shape, value->clusterDim.x, value->clusterDim.y, value->clusterDim.z))
            || (attributes[i].id == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION
                && !fills(shape, value->preferredClusterDim.x, value->preferredClusterDim.y, value->preferredClusterDim.z)))
            return 0;
    }
    hash = whole ? hashed(hash, shape.grid, sizeof shape.grid) : hash;
    return hash ? hash : 1;
}

static int is_accepted(const struct cuda_code *object, uint64_t wanted) {
    for (int i = 0; i < CUDA_ACCEPTED_SHAPES; i++)
        if (__atomic_load_n(&object->accepted_shapes[i], __ATOMIC_ACQUIRE) == wanted)
            return wanted != 0;
    return 0;
}

/* True if a device takes such a grid from every caller. */
static int is_plain_grid(aviary_launch_shape shape) {
    return shape.grid[0] && shape.grid[1] && shape.grid[2] && shape.grid[0] < 1u << 31 && shape.grid[1] < 1u << 16
           && shape.grid[2] < 1u << 16 && shape.block[0] && shape.block[1] && shape.block[2] && shape.block[2] <= 64;
}

/* A buffer that the application packed may have another size than the parameters: of that the driver judges first. */
static int is_accepted_size(const struct cuda_code *object, size_t bytes) {
    uint32_t least = __atomic_load_n(&object->accepted_bytes, __ATOMIC_ACQUIRE);
    return bytes == object->layout->bytes || (least && bytes >= least && bytes < object->layout->bytes);
}

static int repeats(CUfunction function, aviary_launch_shape shape, size_t bytes, const CUlaunchAttribute *attributes) {
    const struct cuda_code *object = cuda_code_of(function);
    if (!object || !object->layout || !is_accepted_size(object, bytes) || !is_plain_grid(shape) || threads_of(shape) > object->accepted_threads
        || shape.shared_bytes > object->accepted_shared)
        return 0;
    return shape.attribute_count == 0 || is_accepted(object, shape_hash(shape, attributes));
}

/* True if this thread's launch under way is one of those: it teaches nothing new. */
static __thread int repeated;

int cuda_launch_repeats(CUfunction function, aviary_launch_shape shape, size_t bytes, const CUlaunchAttribute *attributes) {
    return repeated = !cuda_launches_block() && repeats(function, shape, bytes, attributes);
}

void cuda_note_launch(CUfunction function, aviary_launch_shape shape, size_t bytes, const CUlaunchAttribute *attributes) {
    struct cuda_code *object = repeated ? NULL : cuda_code_of(function);
    if (!object)
        return;
    cuda_note_new_code();
    if (!object->accepted_threads)
        cuda_note_new_kernels();
    uint64_t accepted = shape.attribute_count ? shape_hash(shape, attributes) : 0;
    if (accepted && !is_accepted(object, accepted)) {
        uint32_t at = __atomic_fetch_add(&object->next_accepted_shape, 1, __ATOMIC_ACQ_REL) % CUDA_ACCEPTED_SHAPES;
        __atomic_store_n(&object->accepted_shapes[at], accepted, __ATOMIC_RELEASE);
    }
    uint32_t least = __atomic_load_n(&object->accepted_bytes, __ATOMIC_RELAXED);
    if (bytes && bytes < CUDA_PARAMETER_BYTES && (!least || bytes < least))
        __atomic_store_n(&object->accepted_bytes, (uint32_t)bytes, __ATOMIC_RELEASE);
    /* Both bounds come from one launch: a larger one of the two alone says nothing about the other. */
    if (threads_of(shape) >= object->accepted_threads && shape.shared_bytes >= object->accepted_shared) {
        object->accepted_threads = threads_of(shape);
        object->accepted_shared = shape.shared_bytes;
    }
}
