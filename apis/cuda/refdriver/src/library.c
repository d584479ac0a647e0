/* Libraries: code that every context loads when it first needs it. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct CUlib_st {
    struct object object;
    struct code_image code;
    CUmodule modules[64]; /* at most one for each context */
    CUkernel *kernels;
    size_t count;
};

enum { CONTEXTS = sizeof(((struct CUlib_st *)0)->modules) / sizeof(CUmodule) };

static void destroy(void *object)
{
    CUlibrary library = object;

    for (size_t i = 0; i < library->count; i++)
        free((char *)library->kernels[i]->name);
    free(library->kernels);
    free(library->code.bytes);
}

static CUresult module_of(CUlibrary library, CUcontext context, CUmodule *module)
{
    char message[200];
    CUmodule *slot = NULL;
    CUresult result;

    for (int i = 0; i < CONTEXTS; i++) {
        if (library->modules[i] && library->modules[i]->context == context) {
            *module = library->modules[i];
            return CUDA_SUCCESS;
        }
        if (!library->modules[i] && !slot)
            slot = &library->modules[i];
    }
    if (!slot)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = module_create(slot, &library->code, context, message);
    if (result != CUDA_SUCCESS)
        return result;
    (*slot)->library = library;
    *module = *slot;
    return CUDA_SUCCESS;
}

void library_forget(CUlibrary library, CUmodule module)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (library->modules[i] == module)
            library->modules[i] = NULL;
}

static void end(CUlibrary library)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (library->modules[i])
            module_end(library->modules[i]);
    /* The library's own data names its kernels' names: they end with it. */
    for (size_t i = 0; i < library->count; i++)
        object_hold(library->kernels[i]);
    for (size_t i = 0; i < library->count; i++)
        object_end(library->kernels[i]);
    CUkernel *kernels = library->kernels;
    size_t count = library->count;
    library->kernels = NULL;
    library->count = 0;
    for (size_t i = 0; i < count; i++) {
        free((char *)kernels[i]->name);
        object_drop(kernels[i]);
    }
    free(kernels);
    object_end(library);
}

static CUresult add_kernels(CUlibrary library, const struct ptx_program *program)
{
    library->kernels = calloc(program->code_count + 1, sizeof(*library->kernels));
    if (!library->kernels)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < program->code_count; i++) {
        CUkernel kernel = object_new(KIND_KERNEL, sizeof(*kernel), NULL);
        if (!kernel)
            return CUDA_ERROR_OUT_OF_MEMORY;
        kernel->library = library;
        kernel->name = strdup(program->codes[i]->name);
        kernel->index = i;
        library->kernels[library->count++] = kernel;
    }
    return CUDA_SUCCESS;
}

static CUresult load(CUlibrary *result, const void *image)
{
    char message[200];
    struct code_image code;
    struct ptx_program *program;
    CUresult error = result && image ? image_open(image, &code) : CUDA_ERROR_INVALID_VALUE;
    CUlibrary library;

    if (error != CUDA_SUCCESS)
        return error;
    library = object_new(KIND_LIBRARY, sizeof(*library), destroy);
    if (!library) {
        free(code.bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    library->code = code;
    /* Only for the names: no context is needed here. */
    program = image_program(&code, code.machine ? NULL : allocate_nothing, NULL, message);
    if (!program) {
        end(library);
        return code.machine ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_INVALID_PTX;
    }
    error = add_kernels(library, program);
    ptx_free(program);
    if (error != CUDA_SUCCESS)
        end(library);
    else
        *result = library;
    return error;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options, void **jit_values,
                           unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    (void)jit_options;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return load(library, image);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options, void **jit_values,
                               unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    char *bytes;
    CUresult result = path ? image_read(path, &bytes) : CUDA_ERROR_INVALID_VALUE;

    (void)jit_options;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    if (result != CUDA_SUCCESS)
        return result;
    result = load(library, bytes);
    free(bytes);
    return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    if (!object_check(library, KIND_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < CONTEXTS; i++)
        if (library->modules[i])
            context_drain(library->modules[i]->context);
    if (object_check(library, KIND_LIBRARY))
        end(library);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    if (!kernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(library, KIND_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < library->count; i++)
        if (strcmp(library->kernels[i]->name, name) == 0) {
            *kernel = library->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(library, KIND_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)library->count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library)
{
    if (!kernels || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(library, KIND_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < count; i++)
        kernels[i] = i < library->count ? library->kernels[i] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CUcontext context;
    CUresult result = module ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    return object_check(library, KIND_LIBRARY) ? module_of(library, context, module) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    CUmodule module;
    CUresult result = name ? cuLibraryGetModule(&module, library) : CUDA_ERROR_INVALID_VALUE;

    return result == CUDA_SUCCESS ? module_global(module, name, address, size) : result;
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    CUmodule module;
    CUcontext context;
    CUresult result = name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

    if (!object_check(library, KIND_LIBRARY))
        return CUDA_ERROR_INVALID_HANDLE;
    /* The runtime asks before it has a context: then these are the first device's. */
    if (result == CUDA_SUCCESS && context_need(&context) != CUDA_SUCCESS)
        context = devices[0].primary;
    if (result == CUDA_SUCCESS)
        result = module_of(library, context, &module);
    if (result == CUDA_SUCCESS && !module_has_managed(module, name))
        result = CUDA_ERROR_NOT_FOUND;
    return result == CUDA_SUCCESS ? module_global(module, name, address, size) : result;
}

/* --- kernels --- */

CUresult kernel_function(CUkernel kernel, CUcontext context, CUfunction *function)
{
    CUmodule module;
    CUresult result = module_of(kernel->library, context, &module);

    if (result == CUDA_SUCCESS)
        *function = module->functions[kernel->index];
    return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CUcontext context;
    CUresult result = function ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    return object_check(kernel, KIND_KERNEL) ? kernel_function(kernel, context, function) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(kernel, KIND_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    *library = kernel->library;
    return CUDA_SUCCESS;
}

/* The kernel's code on a device: that of the device's primary context, or of the current one. */
static CUresult function_on(CUkernel kernel, CUdevice device, CUfunction *function)
{
    CUcontext context;
    CUresult result;

    if (!object_check(kernel, KIND_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    result = context_need(&context);
    if (result != CUDA_SUCCESS || context->device != device)
        context = devices[device].primary;
    return kernel_function(kernel, context, function);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device)
{
    CUfunction function;
    CUresult result = value ? function_on(kernel, device, &function) : CUDA_ERROR_INVALID_VALUE;

    return result == CUDA_SUCCESS ? function_attribute(function, attribute, value) : result;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
    CUfunction function;
    CUresult result = function_on(kernel, device, &function);

    return result == CUDA_SUCCESS ? function_set_attribute(function, attribute, value) : result;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache cache, CUdevice device)
{
    CUfunction function;

    return (unsigned)cache > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : function_on(kernel, device, &function);
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(kernel, KIND_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    CUfunction function;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;

    if (object_check(kernel, KIND_KERNEL)) {
        CUcontext context;
        result = context_need(&context);
        if (result != CUDA_SUCCESS)
            context = devices[0].primary;
        result = kernel_function(kernel, context, &function);
    }
    return result == CUDA_SUCCESS ? code_parameter(function->code, index, offset, size) : result;
}
