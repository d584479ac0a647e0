#include "driver.h"

#include <string.h>

#include "memory.h"
#include "module.h"
#include "stream.h"

enum { STACK = 64 };
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

static unsigned long long last_id;

static void set_defaults(CUcontext context)
{
    static const size_t limits[CU_LIMIT_MAX] = {
        [CU_LIMIT_STACK_SIZE] = 1024,
        [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
        [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
        [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
        [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
        [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128,
    };

    memcpy(context->limits, limits, sizeof(limits));
    memset(context->peers, 0, sizeof(context->peers));
    context->cache = CU_FUNC_CACHE_PREFER_NONE;
    context->error = CUDA_SUCCESS;
    context->prints = false;
    context->id = ++last_id;
}

CUcontext context_create(CUdevice device, bool primary)
{
    CUcontext context = object_new(KIND_CONTEXT, sizeof(*context), NULL);

    if (!context)
        return NULL;
    context->device = device;
    context->primary = primary;
    context->active = !primary;
    set_defaults(context);
    return context;
}

/* False: the device has not so much. */
static bool take_memory(CUcontext context)
{
    if (!device_take(&devices[context->device], context_bytes))
        return false;
    context->taken = context_bytes;
    return true;
}

static void give_memory(CUcontext context)
{
    device_give(&devices[context->device], context->taken);
    context->taken = 0;
}

static CUcontext top(void)
{
    /* Contexts that another thread destroyed are still on this thread's stack. */
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult context_need(CUcontext *context)
{
    CUcontext current = top();

    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!object_check(current, KIND_CONTEXT) || !current->active)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = current;
    return current->error;
}

/* The given context, or for NULL the current one. */
static CUresult context_or_current(CUcontext *context)
{
    if (!*context)
        return context_need(context);
    return object_check(*context, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

void context_flush(void)
{
    if (object_check(top(), KIND_CONTEXT))
        print_flush(top());
}

CUresult context_drain(CUcontext context) { return streams_wait(context, true); }

/* Ends all that lives in a context; the context itself is another matter. */
static void empty(CUcontext context)
{
    context_drain(context);
    print_flush(context);
    modules_end(context);
    streams_end(context);
    memory_end(context);
    ended_context = context;
}

static CUresult push(CUcontext context)
{
    if (depth == STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    CUcontext created;

    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    /* As an H100 answers without MPS; a negative number is none. */
    if (parameters && parameters->cigParams)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (parameters && parameters->numExecAffinityParams > 0)
        return parameters->execAffinityParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    created = context_create(device, false);
    if (!created)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!take_memory(created)) {
        object_end(created);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    created->flags = flags;
    *context = created;
    return push(created);
}

CUresult cuCtxDestroy(CUcontext context)
{
    if (!object_check(context, KIND_CONTEXT) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    empty(context);
    give_memory(context);
    if (top() == context)
        depth--;
    object_end(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    return object_check(context, KIND_CONTEXT) ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (!top())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = top();
    depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (context && !object_check(context, KIND_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth > 0)
        depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = top();
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device, CUcontext context)
{
    CUresult result;

    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context)
        context = top();
    /* The device of a context is known even while the context has an error. */
    result = object_check(context, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

CUresult cuCtxGetDevice(CUdevice *device) { return get_device(device, NULL); }
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) { return get_device(device, context); }

CUresult cuCtxGetFlags(unsigned *flags)
{
    CUcontext context;
    CUresult result = flags ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

CUresult cuCtxSetFlags(unsigned flags)
{
    CUcontext context;
    CUresult result = flags & ~(unsigned)CU_CTX_FLAGS_MASK ? CUDA_ERROR_INVALID_VALUE : context_need(&context);

    if (result == CUDA_SUCCESS)
        context->flags = flags;
    return result;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = id ? context_or_current(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    CUresult result = version ? context_or_current(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *version = 3020;
    return result;
}

CUresult cuCtxSynchronize(void)
{
    CUcontext context;
    CUresult result = context_need(&context);

    if (result == CUDA_SUCCESS)
        result = context_drain(context);
    context_flush();
    return result;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = context_or_current(&context);

    if (result != CUDA_SUCCESS)
        return result;
    result = capture_forbids_all(context);
    if (result != CUDA_SUCCESS)
        return result;
    object_hold(context);
    result = context_drain(context);
    print_flush(context);
    object_drop(context);
    return result;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext context;
    CUresult result;

    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    result = context_need(&context);
    if (result == CUDA_SUCCESS)
        *value = context->limits[limit];
    return result;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;
    CUresult result;

    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    result = context_need(&context);
    if (result == CUDA_SUCCESS && limit == CU_LIMIT_PRINTF_FIFO_SIZE && context->prints)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        context->limits[limit] = value;
    return result;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *cache)
{
    CUcontext context;
    CUresult result = cache ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *cache = context->cache;
    return result;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache cache)
{
    CUcontext context;
    CUresult result = (unsigned)cache > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : context_need(&context);

    if (result == CUDA_SUCCESS)
        context->cache = cache;
    return result;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = STREAM_PRIORITY_LEAST;
    if (greatest)
        *greatest = STREAM_PRIORITY_GREATEST;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    CUcontext context;

    return context_need(&context);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUcontext context;
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : context_need(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (!object_check(peer, KIND_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context->device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (context->peers[peer->device])
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers[peer->device] = true;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext context;
    CUresult result = context_need(&context);

    if (result != CUDA_SUCCESS)
        return result;
    if (!object_check(peer, KIND_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->peers[peer->device])
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers[peer->device] = false;
    return CUDA_SUCCESS;
}

/* --- primary contexts: one for each device, with a handle that never changes --- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!devices[device].primary->active && !take_memory(devices[device].primary))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *context = devices[device].primary;
    (*context)->retained++;
    (*context)->active = true;
    return CUDA_SUCCESS;
}

static void reset(CUcontext context)
{
    empty(context);
    give_memory(context);
    context->active = false;
    set_defaults(context);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CUcontext context;

    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    context = devices[device].primary;
    if (!context->retained)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->retained == 0)
        reset(context);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    CUcontext context;

    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    context = devices[device].primary;
    if (context->active)
        reset(context);
    /* Its earlier users have a destroyed context until it is retained again: so NVIDIA's driver does. */
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK)
        return CUDA_ERROR_INVALID_VALUE;
    devices[device].primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = devices[device].primary->flags;
    *active = devices[device].primary->active;
    return CUDA_SUCCESS;
}
