#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static CUmodule modules;

static void destroy(void *object)
{
    CUmodule module = object;

    ptx_free(module->program);
    free(module->functions);
}

static void *allocate_global(void *context, size_t size, bool managed, CUdeviceptr *address)
{
    enum { ALIGNMENT = 256 };
    CUcontext owner = context;

    if (managed)
        return managed_allocate(address, size, owner) == CUDA_SUCCESS ? (void *)(uintptr_t)*address : NULL;
    if (memory_allocate(address, size, ALIGNMENT, owner, owner->device, NULL) != CUDA_SUCCESS)
        return NULL;
    return memory_at(*address, size);
}

static void destroy_function(void *object) { object_drop(((CUfunction)object)->module); }

static bool add_functions(CUmodule module)
{
    size_t count = module->program->code_count;

    module->functions = calloc(count + 1, sizeof(*module->functions));
    for (size_t i = 0; module->functions && i < count; i++) {
        CUfunction function = object_new(KIND_FUNCTION, sizeof(*function), destroy_function);
        if (!function)
            return false;
        function->module = module;
        function->code = module->program->codes[i];
        function->dynamic_shared = 49152;
        function->carveout = -1;
        /* A launch may outlive the unloading of its module. */
        object_hold(module);
        module->functions[i] = function;
    }
    return module->functions != NULL;
}

CUresult module_create(CUmodule *result, const struct code_image *code, CUcontext context, char message[200])
{
    CUmodule module = object_new(KIND_MODULE, sizeof(*module), NULL);

    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->program = image_program(code, allocate_global, context, message);
    if (!module->program) {
        object_end(module);
        return code->machine ? CUDA_ERROR_INVALID_IMAGE : CUDA_ERROR_INVALID_PTX;
    }
    module->object.destroy = destroy;
    module->context = context;
    if (!add_functions(module)) {
        module_end(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    module->sibling = modules;
    modules = module;
    *result = module;
    return CUDA_SUCCESS;
}

void module_end(CUmodule module)
{
    CUmodule *link = &modules;

    while (*link && *link != module)
        link = &(*link)->sibling;
    if (*link)
        *link = module->sibling;
    for (size_t i = 0; i < module->program->global_count; i++)
        if (module->program->globals[i].managed)
            managed_free(module->program->globals[i].address);
        else
            memory_release(module->program->globals[i].address);
    for (size_t i = 0; module->functions && i < module->program->code_count; i++)
        if (module->functions[i])
            object_end(module->functions[i]);
    object_end(module);
}

void modules_end(CUcontext context)
{
    CUmodule module = modules;

    while (module) {
        CUmodule next = module->sibling;
        if (module->context == context) {
            if (module->library)
                library_forget(module->library, module);
            module_end(module);
        }
        module = next;
    }
}

CUresult module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *size)
{
    for (size_t i = 0; i < module->program->global_count; i++) {
        const struct ptx_global *global = &module->program->globals[i];
        if (strcmp(global->name, name) != 0)
            continue;
        if (address)
            *address = global->address;
        if (size)
            *size = global->size;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

bool module_has_managed(CUmodule module, const char *name)
{
    for (size_t i = 0; i < module->program->global_count; i++)
        if (module->program->globals[i].managed && strcmp(module->program->globals[i].name, name) == 0)
            return true;
    return false;
}

/* --- the driver's functions --- */

/* The just-in-time compiler's log goes to the application's buffer. */
static void write_log(const char *message, unsigned count, CUjit_option *options, void **values)
{
    char *buffer = NULL;
    size_t size = 0;

    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
            buffer = values[i];
        else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            size = (size_t)(uintptr_t)values[i];
    }
    if (buffer && size)
        snprintf(buffer, size, "%s", message);
}

static CUresult load(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    char message[200] = "";
    struct code_image code;
    CUcontext context;
    CUresult result = module && image && (!count || (options && values)) ? context_need(&context) : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS) {
        print_flush(context);
        result = image_open(image, &code);
    }
    if (result != CUDA_SUCCESS)
        return result;
    result = module_create(module, &code, context, message);
    free(code.bytes);
    write_log(message, count, options, values);
    return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(module, image, 0, NULL, NULL); }
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return load(module, image, 0, NULL, NULL); }

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    return load(module, image, count, options, values);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char *bytes;
    CUresult result = module && path ? image_read(path, &bytes) : CUDA_ERROR_INVALID_VALUE;

    if (result != CUDA_SUCCESS)
        return result;
    result = load(module, bytes, 0, NULL, NULL);
    free(bytes);
    return result;
}

CUresult cuModuleUnload(CUmodule module)
{
    if (!object_check(module, KIND_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    if (module->library)
        return CUDA_ERROR_NOT_PERMITTED;
    context_drain(module->context);
    if (object_check(module, KIND_MODULE)) {
        print_flush(module->context);
        module_end(module);
    }
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(module, KIND_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < module->program->code_count; i++)
        if (strcmp(module->program->codes[i]->name, name) == 0) {
            *function = module->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(module, KIND_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)module->program->code_count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module)
{
    if (!functions || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(module, KIND_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < count; i++)
        functions[i] = i < module->program->code_count ? module->functions[i] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_check(module, KIND_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    return module_global(module, name, address, size);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
