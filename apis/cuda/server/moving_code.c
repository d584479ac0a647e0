/* The state of modules and libraries: the content of their variables, which kernels and the application may have changed. The image
 * says which there are. */
#include "moving.h"
#include "image_variables.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A module, or a library; and the contexts in which the library was used. */
struct code {
    const void *owner;
    struct cuda_names variables;
    enum cuda_reading reading;
    uint64_t contexts[CUDA_MOST_CONTEXTS];
    size_t context_count;
    struct code *next;
};

static struct code *codes;
static pthread_mutex_t codes_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock. */
static struct code *find_code(const void *owner) {
    struct code *found = codes;
    while (found && found->owner != owner)
        found = found->next;
    return found;
}

void cuda_forget_image(const void *owner) {
    struct code *ended = NULL;
    pthread_mutex_lock(&codes_lock);
    for (struct code **link = &codes; *link; link = &(*link)->next)
        if ((*link)->owner == owner) {
            ended = *link;
            *link = ended->next;
            break;
        }
    pthread_mutex_unlock(&codes_lock);
    if (ended)
        cuda_drop_names(&ended->variables);
    free(ended);
}

/* Those of the devices of this process. */
static uint64_t device_generations(void) {
    uint64_t generations = 0;
    int count = 0, major = 0;
    if (cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return 0;
    for (CUdevice device = 0; device < count; device++)
        if (cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == CUDA_SUCCESS && major >= 0 && major < 64)
            generations |= (uint64_t)1 << major;
    return generations;
}

/* Another one may have had this address, and have ended with its context. */
void cuda_note_image(const void *owner, const void *image, size_t bytes) {
    struct code *made = calloc(1, sizeof *made);
    cuda_forget_image(owner);
    if (!made)
        return;
    made->owner = owner;
    made->reading = cuda_find_variables(image, bytes, device_generations(), &made->variables);
    pthread_mutex_lock(&codes_lock);
    made->next = codes;
    codes = made;
    pthread_mutex_unlock(&codes_lock);
}

/* With the lock. */
static int is_used_in(const struct code *code, uint64_t serial) {
    size_t at = 0;
    while (at < code->context_count && code->contexts[at] != serial)
        at++;
    return at < code->context_count;
}

/* The current context uses this module or library from now on: it has variables of its own there. */
void cuda_use_code(const void *owner) {
    uint64_t serial = cuda_context_serial(cuda_thread_context());
    pthread_mutex_lock(&codes_lock);
    struct code *code = find_code(owner);
    if (code && serial && code->context_count < CUDA_MOST_CONTEXTS && !is_used_in(code, serial))
        code->contexts[code->context_count++] = serial;
    pthread_mutex_unlock(&codes_lock);
}

/* With the lock: a context lives in which it is. */
static int is_loaded(const struct code *code) {
    size_t at = 0;
    while (at < code->context_count && !cuda_context_lives(code->contexts[at]))
        at++;
    return at < code->context_count;
}

const char *cuda_code_obstacle(void) {
    static const char *const obstacles[] = {
        [CUDA_UNREADABLE] = "it has device code whose variables cannot be told",
        [CUDA_ALLOCATES] = "it has device code that allocates memory",
        [CUDA_READ] = NULL,
    };
    const char *obstacle = NULL;
    pthread_mutex_lock(&codes_lock);
    for (const struct code *code = codes; code && !obstacle; code = code->next)
        obstacle = code->reading == CUDA_READ || !is_loaded(code) ? NULL : obstacles[code->reading];
    pthread_mutex_unlock(&codes_lock);
    return obstacle;
}

/* Of a kernel that the current context uses. */
void cuda_use_kernel(CUkernel kernel) {
    CUlibrary library = NULL;
    if (kernel && cuKernelGetLibrary(&library, kernel) == CUDA_SUCCESS)
        cuda_use_code(library);
}

/* ---- Saving and loading -------------------------------------------------------------------------- */

enum code_kind { CODE_MODULE, CODE_LIBRARY };

/* The module or library that is saved or loaded. */
struct target {
    const void *owner;
    enum code_kind kind;
};

/* In the head: so many bytes of the variable of that number, in the context of that number. */
struct content {
    uint64_t context, variable, bytes;
};

static CUresult find_variable(const struct code *code, enum code_kind kind, size_t number, CUdeviceptr *pointer, size_t *bytes) {
    const char *name = code->variables.names[number];
    return kind == CODE_MODULE ? cuModuleGetGlobal_v2(pointer, bytes, (CUmodule)(uintptr_t)code->owner, name)
                               : cuLibraryGetGlobal(pointer, bytes, (CUlibrary)(uintptr_t)code->owner, name);
}

static int is_managed(CUdeviceptr pointer) {
    unsigned int managed = 0;
    return cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) == CUDA_SUCCESS && managed;
}

/* The variables in the current context. A compiler's own constants, whose names begin with `$`, the driver does not show. */
static int put_variables(const struct code *code, enum code_kind kind, CUcontext context, struct cuda_moved_output *output) {
    for (size_t i = 0; i < code->variables.count; i++) {
        CUdeviceptr pointer = 0;
        size_t bytes = 0;
        CUresult status = find_variable(code, kind, i, &pointer, &bytes);
        if (status == CUDA_ERROR_NOT_FOUND && code->variables.names[i][0] == '$')
            continue;
        struct content content = {aviary_object_id(context), i, bytes};
        struct cuda_moved_part part = {context, pointer, bytes, 0};
        if (status != CUDA_SUCCESS || !pointer || is_managed(pointer) || !cuda_put_head(output, &content, sizeof content)
            || !cuda_put_part(output, part))
            return 0;
    }
    return 1;
}

static int describe(struct cuda_moved_output *to, void *data) {
    const struct target *target = data;
    CUcontext contexts[CUDA_MOST_CONTEXTS];
    size_t count = cuda_live_contexts(contexts, CUDA_MOST_CONTEXTS);
    int described = 0;
    pthread_mutex_lock(&codes_lock);
    const struct code *code = find_code(target->owner);
    described = code && cuda_put_head(to, NULL, 0);
    for (size_t i = 0; described && i < count && i < CUDA_MOST_CONTEXTS; i++)
        if (is_used_in(code, cuda_context_serial(contexts[i]))) {
            described = cuda_enter_context(contexts[i]);
            if (!described)
                break;
            described = put_variables(code, target->kind, contexts[i], to);
            cuda_leave_context();
        }
    pthread_mutex_unlock(&codes_lock);
    return described;
}

/* One object at a time is saved, from its first offset to its last; one is loaded, too. */
static struct cuda_moved_output output;
static struct cuda_moved_input input;

static int64_t save(const void *owner, enum code_kind kind, uint64_t offset, void *to, size_t bytes) {
    struct target target = {owner, kind};
    return cuda_write_moved(&output, offset, to, bytes, describe, &target);
}

int64_t cuda_save_module(CUmodule module, uint64_t offset, void *to, size_t bytes) {
    return save(module, CODE_MODULE, offset, to, bytes);
}

int64_t cuda_save_library(CUlibrary library, uint64_t offset, void *to, size_t bytes) {
    return save(library, CODE_LIBRARY, offset, to, bytes);
}

static int find_parts(struct cuda_moved_input *from, void *data) {
    const struct target *target = data;
    const size_t begin = sizeof(uint64_t);
    size_t count = (from->head_bytes - begin) / sizeof(struct content);
    from->parts = calloc(count ? count : 1, sizeof *from->parts);
    pthread_mutex_lock(&codes_lock);
    const struct code *code = find_code(target->owner);
    int found = from->parts && code && begin + count * sizeof(struct content) == from->head_bytes;
    for (size_t i = 0; found && i < count; i++) {
        struct content content;
        CUdeviceptr pointer = 0;
        size_t bytes = 0;
        memcpy(&content, from->head + begin + i * sizeof content, sizeof content);
        CUcontext context = aviary_object(content.context);
        found = content.variable < code->variables.count && cuda_enter_context(context);
        if (!found)
            break;
        found = find_variable(code, target->kind, content.variable, &pointer, &bytes) == CUDA_SUCCESS && bytes == content.bytes;
        cuda_leave_context();
        from->parts[from->part_count++] = (struct cuda_moved_part){context, pointer, bytes, 0};
    }
    pthread_mutex_unlock(&codes_lock);
    return !found;
}

static int load(const void *owner, enum code_kind kind, uint64_t offset, const void *from, size_t bytes) {
    struct target target = {owner, kind};
    return cuda_read_moved(&input, offset, from, bytes, find_parts, &target);
}

int cuda_restore_module(CUmodule module, uint64_t offset, const void *from, size_t bytes) {
    return load(module, CODE_MODULE, offset, from, bytes);
}

int cuda_restore_library(CUlibrary library, uint64_t offset, const void *from, size_t bytes) {
    return load(library, CODE_LIBRARY, offset, from, bytes);
}
