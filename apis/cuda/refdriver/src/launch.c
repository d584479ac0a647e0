#include "launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "stream.h"

static CUresult copy_parameters(struct launch *launch, void **parameters, void **extra)
{
    const struct ptx_code *code = launch->function->code;
    const void *packed = NULL;
    size_t packed_size = 0;

    launch->size = code->parameter_bytes;
    if (!parameters && extra) {
        for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
                packed = extra[1];
            else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
                packed_size = *(size_t *)extra[1];
            else
                return CUDA_ERROR_INVALID_VALUE;
        }
        /* Fewer bytes than the parameters have are taken, as NVIDIA's driver does; the rest is zero here. */
        if (!packed || packed_size > launch->size || (launch->size && !packed_size))
            return CUDA_ERROR_INVALID_VALUE;
    } else if (!parameters && launch->size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    launch->parameters = calloc(1, launch->size + 1);
    if (!launch->parameters)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (packed) {
        memcpy(launch->parameters, packed, packed_size);
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < code->parameter_count; i++)
        memcpy(launch->parameters + code->parameters[i].offset, parameters[i], code->parameters[i].size);
    return CUDA_SUCCESS;
}

static CUresult check_sizes(const struct launch *launch)
{
    CUfunction function = launch->function;
    CUdevice device = function->module->context->device;
    uint64_t threads = 1;

    for (int i = 0; i < 3; i++) {
        unsigned grid_limit = (unsigned)device_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i, device);
        unsigned block_limit = (unsigned)device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i, device);
        if (!launch->grid[i] || launch->grid[i] > grid_limit || !launch->block[i] || launch->block[i] > block_limit)
            return CUDA_ERROR_INVALID_VALUE;
        threads *= launch->block[i];
    }
    if (threads > (uint64_t)function->code->maximum_threads || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    return launch->shared > (unsigned)function->dynamic_shared ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult launch_make(struct launch *launch, CUfunction handle, const unsigned grid[3], const unsigned block[3],
                     unsigned shared, void **parameters, void **extra)
{
    static bool said;
    CUresult result = function_resolve(handle, &launch->function, &launch->kernel);

    if (result != CUDA_SUCCESS)
        return result;
    memcpy(launch->grid, grid, sizeof(launch->grid));
    memcpy(launch->block, block, sizeof(launch->block));
    launch->shared = shared;
    result = check_sizes(launch);
    if (result != CUDA_SUCCESS)
        return result;
    if (launch->function->code->unsupported && !machine_code_skipped) {
        if (!said)
            fprintf(stderr, "refdriver: kernel %s has an instruction that cannot be run: %s\n", launch->function->code->name,
                    launch->function->code->unsupported);
        said = true;
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    result = copy_parameters(launch, parameters, extra);
    if (result == CUDA_SUCCESS)
        object_hold(launch->function);
    else
        free(launch->parameters);
    return result;
}

int launch_resident_blocks(CUfunction function, unsigned threads, size_t shared)
{
    CUdevice device = function->module->context->device;
    int by_threads = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) / (int)((threads + 31) / 32 * 32);
    size_t each = shared + function->code->shared_bytes +
                  (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
    int by_shared = (int)((size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device) / each);
    int blocks = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, device);

    if ((int)threads > function->code->maximum_threads)
        return 0;
    blocks = by_threads < blocks ? by_threads : blocks;
    return by_shared < blocks ? by_shared : blocks;
}

static CUresult launch_on(CUstream handle, CUfunction function, const unsigned grid[3], const unsigned block[3],
                          unsigned shared, void **parameters, void **extra, bool cooperative)
{
    struct operation operation = {.kind = OPERATION_KERNEL};
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result == CUDA_SUCCESS)
        print_flush(stream->context);
    if (result == CUDA_SUCCESS)
        result = launch_make(&operation.launch, function, grid, block, shared, parameters, extra);
    if (result != CUDA_SUCCESS)
        return result;
    if (cooperative) {
        uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
        int multiprocessors = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, stream->context->device);
        int resident = launch_resident_blocks(operation.launch.function, block[0] * block[1] * block[2], shared);
        if (blocks > (uint64_t)resident * (uint64_t)multiprocessors) {
            operation_clear(&operation);
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        }
    }
    return stream_submit(stream, &operation);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};

    return launch_on(stream, function, grid, block, shared, parameters, extra, false);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                   CUstream stream, void **parameters)
{
    const unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};

    return launch_on(stream, function, grid, block, shared, parameters, NULL, true);
}

static unsigned cluster_blocks(const CUlaunchAttribute *attribute)
{
    return attribute->value.clusterDim.x * attribute->value.clusterDim.y * attribute->value.clusterDim.z;
}

/* Attributes that only say how fast or where are taken and change nothing; others would change the result. */
static CUresult check_attributes(const CUlaunchConfig *config, bool *cooperative)
{
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        switch (attribute->id) {
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            *cooperative = attribute->value.cooperative != 0;
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            if (!machine_code_skipped && cluster_blocks(attribute) != 1)
                return CUDA_ERROR_NOT_SUPPORTED;
            break;
        default:
            if (!machine_code_skipped)
                return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    bool cooperative = false;
    CUresult result = config && (!config->numAttrs || config->attrs) ? check_attributes(config, &cooperative) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    const unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch_on(config->hStream, function, grid, block, config->sharedMemBytes, parameters, extra, cooperative);
}

/* --- occupancy --- */

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads, size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads, size_t shared, unsigned flags)
{
    CUfunction function;
    CUkernel kernel;
    CUresult result = blocks && threads > 0 && flags <= 1 ? function_resolve(handle, &function, &kernel) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *blocks = launch_resident_blocks(function, (unsigned)threads, shared);
    return result;
}

CUresult cuOccupancyMaxPotentialClusterSize(int *blocks, CUfunction handle, const CUlaunchConfig *config)
{
    CUfunction function;
    CUkernel kernel;
    CUresult result = blocks && config ? function_resolve(handle, &function, &kernel) : CUDA_ERROR_INVALID_VALUE;
    enum { PORTABLE = 8, MOST = 16 };
    int more;

    if (result == CUDA_SUCCESS)
        result = function_attribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, &more);
    if (result == CUDA_SUCCESS)
        *blocks = more ? MOST : PORTABLE;
    return result;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction handle, const CUlaunchConfig *config)
{
    CUfunction function;
    CUkernel kernel;
    CUresult result = clusters && config ? function_resolve(handle, &function, &kernel) : CUDA_ERROR_INVALID_VALUE;
    unsigned blocks = 1;

    if (result != CUDA_SUCCESS)
        return result;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            blocks = cluster_blocks(&config->attrs[i]);
    if (!blocks || !config->blockDimX || !config->blockDimY || !config->blockDimZ)
        return CUDA_ERROR_INVALID_VALUE;
    *clusters = launch_resident_blocks(function, config->blockDimX * config->blockDimY * config->blockDimZ, config->sharedMemBytes) *
                device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, function->module->context->device) / (int)blocks;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *size, CUfunction handle, int blocks, int threads)
{
    CUfunction function;
    CUkernel kernel;
    CUresult result = size && blocks > 0 && threads > 0 ? function_resolve(handle, &function, &kernel) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS) {
        CUdevice device = function->module->context->device;
        size_t all = (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device) / (size_t)blocks;
        size_t used = function->code->shared_bytes + (size_t)device_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
        *size = all > used ? all - used : 0;
    }
    return result;
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of,
                                                   size_t shared, int limit, unsigned flags)
{
    CUfunction function;
    CUkernel kernel;
    CUresult result = grid && block && flags <= 1 ? function_resolve(handle, &function, &kernel) : CUDA_ERROR_INVALID_VALUE;
    int best = 0, most = 1024;

    if (result != CUDA_SUCCESS)
        return result;
    if (limit > 0 && limit < most)
        most = limit;
    if (most >= 32)
        most -= most % 32;
    for (int threads = most; threads > 0; threads -= 32) {
        int blocks = launch_resident_blocks(function, (unsigned)threads, shared_of ? shared_of(threads) : shared);
        if (blocks * threads > best) {
            best = blocks * threads;
            *block = threads;
            *grid = blocks * device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, function->module->context->device);
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0);
}
