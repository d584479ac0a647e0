#include "module.h"

CUresult function_resolve(CUfunction handle, CUfunction *function, CUkernel *kernel)
{
    CUcontext context;
    CUresult result = context_need(&context);

    *kernel = NULL;
    if (result != CUDA_SUCCESS)
        return result;
    *function = object_check(handle, KIND_FUNCTION);
    if (*function)
        return (*function)->module->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    /* Launches and questions about occupancy take a kernel, too. */
    *kernel = object_check(handle, KIND_KERNEL);
    return *kernel ? kernel_function(*kernel, context, function) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult only_function(CUfunction handle, CUfunction *function)
{
    CUkernel kernel;
    CUresult result = function_resolve(handle, function, &kernel);

    return result == CUDA_SUCCESS && kernel ? CUDA_ERROR_INVALID_HANDLE : result;
}

CUresult function_attribute(CUfunction function, CUfunction_attribute attribute, int *value)
{
    const struct ptx_code *code = function->code;
    enum { MAXIMUM_REGISTERS = 255 };

    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = code->maximum_threads;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)code->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)code->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = code->register_count < MAXIMUM_REGISTERS ? code->register_count : MAXIMUM_REGISTERS;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 90;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->dynamic_shared;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = function->carveout;
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ... CU_FUNC_ATTRIBUTE_MAX - 1:
        *value = function->clusters[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH];
        break;
    default:
        if ((unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult function_set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    int limit = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, function->module->context->device);

    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > limit - (int)function->code->shared_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        function->dynamic_shared = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH ... CU_FUNC_ATTRIBUTE_MAX - 1:
        if (value < 0)
            return CUDA_ERROR_INVALID_VALUE;
        function->clusters[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult code_parameter(const struct ptx_code *code, size_t index, size_t *offset, size_t *size)
{
    if (!offset || index >= code->parameter_count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = code->parameters[index].offset;
    if (size)
        *size = code->parameters[index].size;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    CUfunction function;
    CUresult result = value ? only_function(handle, &function) : CUDA_ERROR_INVALID_VALUE;

    return result == CUDA_SUCCESS ? function_attribute(function, attribute, value) : result;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    CUfunction function;
    CUresult result = only_function(handle, &function);

    return result == CUDA_SUCCESS ? function_set_attribute(function, attribute, value) : result;
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache cache)
{
    CUfunction function;

    return (unsigned)cache > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : only_function(handle, &function);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    CUfunction function;
    CUresult result = module ? only_function(handle, &function) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *module = function->module;
    return result;
}

CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    CUfunction function;
    CUresult result = name ? only_function(handle, &function) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *name = function->code->name;
    return result;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    CUfunction function;
    CUresult result = only_function(handle, &function);

    return result == CUDA_SUCCESS ? code_parameter(function->code, index, offset, size) : result;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
    CUfunction function;
    CUresult result = state ? only_function(handle, &function) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS)
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return result;
}

CUresult cuFuncLoad(CUfunction handle)
{
    CUfunction function;

    return only_function(handle, &function);
}
