/* The server's side of the messages in messages.h, with the driver's own functions, and what it checks. */
#include "moving.h"
#include "graph_halves.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- Functions and launches ------------------------------------------------------------------ */

void *cuda_function_layout_function(void) {
    return (void *)cuda_function_layout;
}

static CUresult kernel_attributes(CUkernel kernel, CUdevice device, CUfunction_attribute asked, int *answer,
                                  unsigned int capacity, int *values, unsigned int *known) {
    if (!answer || !values || !known)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuKernelGetAttribute(answer, asked, kernel, device);
    *known = 0;
    for (unsigned int i = 0; status == CUDA_SUCCESS && i < capacity && i < CU_FUNC_ATTRIBUTE_MAX && i < CUDA_SETTINGS; i++)
        if (cuKernelGetAttribute(&values[i], (CUfunction_attribute)i, kernel, device) == CUDA_SUCCESS)
            *known |= 1u << i;
    return status;
}

void *cuda_kernel_attributes_function(void) {
    return (void *)kernel_attributes;
}

/* Values cross as bytes: only those of which the other side's objects and addresses are known to be no part. The window
 * of an access policy lies in device memory. */
int cuda_attribute_allowed(CUlaunchAttributeID attribute, const void *value) {
    (void)value;
    switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: return 1;
    default: return 0;
    }
}

int cuda_attributes_allowed(const CUlaunchAttribute *attributes, unsigned int count) {
    for (unsigned int i = 0; attributes && i < count; i++)
        if (!cuda_attribute_allowed(attributes[i].id, &attributes[i].value))
            return 0;
    return count == 0 || attributes != NULL;
}

static CUresult launch(CUfunction function, aviary_launch_shape shape, CUstream stream, const void *parameters,
                       size_t bytes, const CUlaunchAttribute *attributes) {
    static __thread unsigned char whole[CUDA_PARAMETER_BYTES];
    const struct cuda_layout *layout = cuda_layout_of(function);
    if (!layout || (layout->bytes && !bytes) || (bytes && !parameters) || layout->bytes > sizeof whole)
        return CUDA_ERROR_INVALID_VALUE;
    /* NCCL packs no more than the kernel will read. Whatever the driver reads, it is nobody else's. */
    if (bytes < layout->bytes) {
        memcpy(whole, parameters, bytes);
        memset(whole + bytes, 0, layout->bytes - bytes);
        parameters = whole;
    }
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    if (!shape.attribute_count)
        return cuLaunchKernel(function, shape.grid[0], shape.grid[1], shape.grid[2], shape.block[0], shape.block[1],
                              shape.block[2], shape.shared_bytes, stream, NULL, bytes ? extra : NULL);
    CUlaunchConfig config = {.gridDimX = shape.grid[0], .gridDimY = shape.grid[1], .gridDimZ = shape.grid[2],
                             .blockDimX = shape.block[0], .blockDimY = shape.block[1], .blockDimZ = shape.block[2],
                             .sharedMemBytes = shape.shared_bytes, .hStream = stream,
                             .attrs = (CUlaunchAttribute *)attributes, .numAttrs = shape.attribute_count};
    return cuLaunchKernelEx(&config, function, NULL, bytes ? extra : NULL);
}

void *cuda_launch_function(void) {
    return (void *)launch;
}

/* The guest goes on when it sees the word, without an answer that could tell it of an error. */
static CUresult write_fence(CUstream stream, CUdeviceptr word, cuuint32_t value) {
    return aviary_owes_error() ? CUDA_SUCCESS : cuStreamWriteValue32_v2(stream, word, value, 0);
}

void *cuda_fence_function(void) {
    return (void *)write_fence;
}

/* The driver no longer lets the buffer for what kernels print be set once one that prints was launched. */
int cuda_kernels_print(void) {
    size_t bytes = 0;
    CUresult status = cuCtxGetLimit(&bytes, CU_LIMIT_PRINTF_FIFO_SIZE);
    return status != CUDA_SUCCESS || cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, bytes) != CUDA_SUCCESS
           || cuda_has_printed(cuda_thread_context());
}

/* The driver of a process that has not launched such a kernel itself would let it be set. */
static CUresult set_limit(CUlimit limit, size_t value) {
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE && cuda_has_printed(cuda_thread_context()))
        return CUDA_ERROR_INVALID_VALUE;
    return cuCtxSetLimit(limit, value);
}

void *cuda_set_limit_function(void) {
    return (void *)set_limit;
}

static CUresult kernels_print(int *print) {
    if (!print)
        return CUDA_ERROR_INVALID_VALUE;
    *print = cuda_kernels_print();
    return CUDA_SUCCESS;
}

void *cuda_kernels_print_function(void) {
    return (void *)kernels_print;
}

/* ---- Copies ------------------------------------------------------------------------------- */

/* A box must lie in the memory that came with it. */
static int fits(const CUDA_MEMCPY3D *copy, size_t x, size_t y, size_t z, size_t pitch, size_t height, size_t bytes) {
    const size_t most = (size_t)1 << 40;
    if (!copy->WidthInBytes || !copy->Height || !copy->Depth)
        return 1;
    if (x > most || y > most || z > most || pitch > most || height > most || copy->WidthInBytes > most
        || copy->Height > most || copy->Depth > most)
        return 0;
    unsigned __int128 row = pitch ? pitch : x + copy->WidthInBytes, rows = height ? height : y + copy->Height;
    return ((z + copy->Depth - 1) * rows + y + copy->Height - 1) * row + x + copy->WidthInBytes <= bytes;
}

/* The host's sides of a copy are what came with it, and nothing else; the device's lie in allocations of the application. */
CUresult cuda_put_sides(CUDA_MEMCPY3D *copy, void *from, size_t from_bytes, void *to, size_t to_bytes) {
    if (copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED || copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    if ((copy->srcMemoryType == CU_MEMORYTYPE_DEVICE
         && !cuda_may_touch_box(copy->srcDevice, copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcPitch, copy->srcHeight, copy))
        || (copy->dstMemoryType == CU_MEMORYTYPE_DEVICE
            && !cuda_may_touch_box(copy->dstDevice, copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstPitch, copy->dstHeight,
                                   copy)))
        return CUDA_ERROR_INVALID_VALUE;
    if (copy->srcMemoryType == CU_MEMORYTYPE_HOST) {
        if (!fits(copy, copy->srcXInBytes, copy->srcY, copy->srcZ, copy->srcPitch, copy->srcHeight, from_bytes))
            return CUDA_ERROR_INVALID_VALUE;
        copy->srcHost = from;
    }
    if (copy->dstMemoryType == CU_MEMORYTYPE_HOST) {
        if (!fits(copy, copy->dstXInBytes, copy->dstY, copy->dstZ, copy->dstPitch, copy->dstHeight, to_bytes))
            return CUDA_ERROR_INVALID_VALUE;
        copy->dstHost = to;
    }
    return CUDA_SUCCESS;
}

/* True if the stream executes its copies now, and keeps none for later. */
int cuda_may_pass(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult copy_box(CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void *to, size_t to_bytes, CUstream stream) {
    CUresult status = cuda_put_sides(&copy, from, from_bytes, to, to_bytes);
    if (status != CUDA_SUCCESS)
        return status;
    int host = copy.srcMemoryType == CU_MEMORYTYPE_HOST || copy.dstMemoryType == CU_MEMORYTYPE_HOST;
    status = cuMemcpy3DAsync_v2(&copy, stream);
    /* The memory that came with the message ends with it. What a graph keeps is shared memory, which stays. */
    return status == CUDA_SUCCESS && host && cuda_may_pass(stream) ? cuStreamSynchronize(stream) : status;
}

void *cuda_copy_function(void) {
    return (void *)copy_box;
}

/* ---- Arrays and textures --------------------------------------------------------------------- */

uint64_t cuda_array_bytes(size_t width, size_t height, size_t depth, CUarray_format format, unsigned int channels) {
    size_t element = 16;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: element = channels; break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: element = 2 * (size_t)channels; break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: element = 4 * (size_t)channels; break;
    default: break;
    }
    unsigned __int128 bytes = (unsigned __int128)width * (height ? height : 1);
    bytes *= (depth ? depth : 1) * element;
    return bytes > INT64_MAX ? INT64_MAX : (uint64_t)bytes;
}

static CUresult texture(CUtexObject *object, const void *resource, CUarray array, const CUDA_TEXTURE_DESC *description,
                        const CUDA_RESOURCE_VIEW_DESC *view) {
    CUDA_RESOURCE_DESC own;
    if (!resource || !description)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&own, resource, sizeof own);
    switch (own.resType) {
    case CU_RESOURCE_TYPE_ARRAY: own.res.array.hArray = array; break;
    case CU_RESOURCE_TYPE_LINEAR:
    case CU_RESOURCE_TYPE_PITCH2D: break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return cuTexObjectCreate(object, &own, description, view);
}

void *cuda_texture_function(void) {
    return (void *)texture;
}

static CUresult surface(CUsurfObject *object, CUarray array) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res = {.array = {.hArray = array}}};
    return cuSurfObjectCreate(object, &resource);
}

void *cuda_surface_function(void) {
    return (void *)surface;
}

/* ---- Pools, captures, clusters --------------------------------------------------------------- */

int cuda_pool_allowed(const CUmemPoolProps *properties) {
    return properties && properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE
           && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             size_t capacity, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count) {
    const CUgraphNode *known = NULL;
    const CUgraphEdgeData *annotated = NULL;
    size_t found = 0;
    if (!count || (capacity && (!nodes || !edges)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuStreamGetCaptureInfo_v3(stream, status, id, graph, &known, &annotated, &found);
    if (result != CUDA_SUCCESS)
        return result;
    *count = found;
    for (size_t i = 0; i < found && i < capacity; i++) {
        nodes[i] = cuda_seen_node(known[i]);
        if (annotated)
            edges[i] = annotated[i];
        else
            memset(&edges[i], 0, sizeof edges[i]);
    }
    return CUDA_SUCCESS;
}

void *cuda_capture_info_function(void) {
    return (void *)capture_info;
}

/* The driver's own table is private to the CUDA libraries; what it says is the same for every process. */
static CUresult cluster_tables(CUdevice device, unsigned int capacity, unsigned int *count, unsigned char *first,
                               unsigned char *second) {
    static const CUuuid identity = {{0x17, 0x34, 0xdc, 0x26, (char)0x80, 0x0d, 0x47, 0x45, (char)0x87, 0x26, (char)0xc0, (char)0xf1,
                                     (char)0xe7, (char)0xdd, (char)0x8b, (char)0xca}};
    const void *table = NULL;
    int multiprocessors = 0;
    if (!count || (capacity && (!first || !second)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuGetExportTable(&table, &identity);
    if (status == CUDA_SUCCESS)
        status = cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (status != CUDA_SUCCESS)
        return status;
    CUresult (*fetch)(unsigned char **, unsigned char **);
    CUresult (*release)(unsigned char *, unsigned char *);
    memcpy(&fetch, (const char *)table + 4 * sizeof(void *), sizeof fetch);
    memcpy(&release, (const char *)table + 13 * sizeof(void *), sizeof release);
    unsigned char *a = NULL, *b = NULL;
    status = fetch(&a, &b);
    if (status != CUDA_SUCCESS)
        return status;
    *count = (unsigned int)multiprocessors / 2;
    for (unsigned int i = 0; i < *count && i < capacity; i++) {
        first[i] = a[i];
        second[i] = b[i];
    }
    release(a, b);
    return CUDA_SUCCESS;
}

void *cuda_cluster_tables_function(void) {
    return (void *)cluster_tables;
}
