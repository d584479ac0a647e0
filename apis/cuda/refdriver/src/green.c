/* Parts of a device's multiprocessors. Here a context with a part of them is one as any other; as long as it
 * lives the device's primary context does. */
#include <string.h>

#include "driver.h"
#include "stream.h"

enum { MULTIPROCESSORS = 132, GROUP = 8 };

struct CUgreenCtx_st {
    struct object object;
    CUcontext context;
    CUdevResource resource;
    unsigned long long id;
};

struct CUdevResourceDesc_st {
    struct object object;
    CUdevResource resource;
};

/* The device and the first multiprocessor are in what applications do not look into. */
static CUdevResource part(CUdevice device, unsigned first, unsigned count)
{
    CUdevResource resource;

    memset(&resource, 0, sizeof(resource));
    resource.type = CU_DEV_RESOURCE_TYPE_SM;
    resource._internal_padding[0] = (unsigned char)device;
    resource._internal_padding[1] = (unsigned char)first;
    resource.sm = (CUdevSmResource){.smCount = count, .minSmPartitionSize = GROUP, .smCoscheduledAlignment = GROUP};
    return resource;
}

static CUresult of_type(CUdevResource *resource, CUdevResourceType type, CUdevResource value)
{
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    return device_valid(device) ? of_type(resource, type, part(device, 0, MULTIPROCESSORS)) : CUDA_ERROR_INVALID_DEVICE;
}

static CUgreenCtx last;

CUresult cuCtxGetDevResource(CUcontext context, CUdevResource *resource, CUdevResourceType type)
{
    if (!object_check(context, KIND_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (last && last->context == context)
        return of_type(resource, type, last->resource);
    return of_type(resource, type, part(context->device, 0, MULTIPROCESSORS));
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type)
{
    return object_check(green, KIND_GREEN) ? of_type(resource, type, green->resource) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input, CUdevResource *rest,
                                     unsigned flags, unsigned least)
{
    unsigned size = (least + GROUP - 1) / GROUP * GROUP, most, wanted;

    if (!groups || !input || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    size = size ? size : GROUP;
    most = input->sm.smCount / size;
    if (!most)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    wanted = result && *groups < most ? *groups : most;
    for (unsigned i = 0; result && i < wanted; i++)
        result[i] = part(input->_internal_padding[0], input->_internal_padding[1] + i * size, size);
    *groups = wanted;
    if (rest)
        *rest = part(input->_internal_padding[0], input->_internal_padding[1] + wanted * size, input->sm.smCount - wanted * size);
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources, unsigned count)
{
    if (!description || !resources || count != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (resources->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *description = object_new(KIND_RESOURCE, sizeof(**description), NULL);
    if (!*description)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*description)->resource = *resources;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
    static unsigned long long ids;
    CUcontext primary;
    CUresult result;

    if (!green || flags != CU_GREEN_CTX_DEFAULT_STREAM || !object_check(description, KIND_RESOURCE))
        return CUDA_ERROR_INVALID_VALUE;
    result = cuDevicePrimaryCtxRetain(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    *green = object_new(KIND_GREEN, sizeof(**green), NULL);
    if (!*green)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*green)->context = context_create(device, false);
    (*green)->resource = description->resource;
    (*green)->id = ++ids;
    last = *green;
    return (*green)->context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUresult result;

    if (!object_check(green, KIND_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    cuDevicePrimaryCtxRelease(green->context->device);
    result = cuCtxDestroy(green->context);
    if (last == green)
        last = NULL;
    object_end(green);
    return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    if (!context || !object_check(green, KIND_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = green->context;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
    if (!object_check(green, KIND_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = green->id;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    CUcontext before = NULL;
    CUresult result;

    if (!object_check(green, KIND_GREEN))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    cuCtxGetCurrent(&before);
    cuCtxSetCurrent(green->context);
    result = cuStreamCreateWithPriority(stream, flags, priority);
    cuCtxSetCurrent(before);
    return result;
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green)
{
    CUstream stream;
    CUresult result = green ? stream_resolve(handle, &stream) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *green = last && last->context == stream->context ? last : NULL;
    return result;
}
