/* State on which remembered answers about a function or a kernel depend besides itself: the settings of its launches, and
 * the end of a context, which takes functions along whose modules nobody unloaded. */
#include "guest/functions.h"

static uint64_t contexts_ended, settings_of_all;

static uint64_t counted(const uint64_t *counter) {
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

void cuda_context_ended(void) {
    __atomic_fetch_add(&contexts_ended, 1, __ATOMIC_RELEASE);
}

uint64_t cuda_functions_epoch(void) {
    return counted(&contexts_ended);
}

/* ---- Settings ------------------------------------------------------------------------------- */

static uint64_t setting_hash(unsigned int which, int value) {
    return cuda_mixed((uint64_t)which << 32 | (uint32_t)value);
}

/* A kernel and the functions that it is in contexts have the same attributes: all are remembered with the kernel. */
static struct cuda_code *settings_object(const void *handle) {
    struct cuda_code *object = cuda_code_of(handle);
    struct cuda_code *owner = object ? cuda_code_of(__atomic_load_n(&object->kernel, __ATOMIC_ACQUIRE)) : NULL;
    return owner ? owner : object;
}

/* `setter`: whom the setting is for, a function (0) or a kernel on a device. What another one set before may be no longer
 * so: it is forgotten, and so are all answers. The same settings have the same mark. Tells whether they changed. */
static int put(struct cuda_code *object, uint64_t setter, unsigned int which, int value) {
    uint32_t bit = 1u << which;
    setter = setter + (counted(&contexts_ended) << 32) + 1;
    uint64_t before_setter = __atomic_exchange_n(&object->setter, setter, __ATOMIC_ACQ_REL);
    if (before_setter && before_setter != setter) {
        __atomic_fetch_add(&object->replaced, 1, __ATOMIC_ACQ_REL);
        __atomic_store_n(&object->set, 0, __ATOMIC_RELEASE);
        __atomic_store_n(&object->settings, 0, __ATOMIC_RELEASE);
    }
    int before = __atomic_exchange_n(&object->setting[which], value, __ATOMIC_ACQ_REL);
    int was_set = (__atomic_fetch_or(&object->set, bit, __ATOMIC_ACQ_REL) & bit) != 0;
    if (was_set && before == value)
        return 0;
    __atomic_fetch_xor(&object->settings, setting_hash(which, value) ^ (was_set ? setting_hash(which, before) : 0), __ATOMIC_ACQ_REL);
    return 1;
}

void cuda_note_setting(CUfunction function, unsigned int which, int value) {
    struct cuda_code *object = settings_object(function);
    /* A function that came out of a module may be a kernel's all the same. */
    if (object && which < CUDA_SETTINGS && put(object, 0, which, value) && !object->is_kernel)
        __atomic_fetch_add(&settings_of_all, 1, __ATOMIC_RELEASE);
}

void cuda_note_kernel_setting(CUkernel kernel, unsigned int which, int value, CUdevice device) {
    struct cuda_code *object = cuda_code_of(kernel);
    if (object && which < CUDA_SETTINGS)
        put(object, (uint64_t)device + 1, which, value);
}

/* True if the kernel's attribute has that value already, because it was set to it: many applications make their settings
 * before every launch. */
int cuda_kernel_has_setting(CUkernel kernel, unsigned int which, int value, CUdevice device) {
    const struct cuda_code *object = cuda_code_of(kernel);
    return object && which < CUDA_SETTING_CACHE && (__atomic_load_n(&object->set, __ATOMIC_ACQUIRE) & 1u << which)
           && __atomic_load_n(&object->setting[which], __ATOMIC_ACQUIRE) == value
           && counted(&object->setter) == (uint64_t)device + 1 + (counted(&contexts_ended) << 32) + 1 && cuda_no_sticky_error();
}

void cuda_note_context_setting(void) {
    __atomic_fetch_add(&settings_of_all, 1, __ATOMIC_RELEASE);
}

/* State on which the attributes and the occupancy of a function or a kernel depend. */
uint64_t cuda_function_state(const void *handle) {
    const struct cuda_code *object = settings_object(handle);
    uint64_t state = cuda_mixed(cuda_functions_epoch()) + counted(&settings_of_all);
    return object ? cuda_mixed(state + cuda_mixed(counted(&object->replaced))) ^ counted(&object->settings) : cuda_mixed(state);
}

/* ---- Limits --------------------------------------------------------------------------------- */

static uint64_t limits_set, code_readied;

void cuda_note_limit(void) {
    __atomic_fetch_add(&limits_set, 1, __ATOMIC_RELEASE);
}

/* The driver got code that it may not have run before. */
void cuda_note_new_code(void) {
    __atomic_fetch_add(&code_readied, 1, __ATOMIC_RELEASE);
}

/* State on which a context's limit depends. The driver enlarges the stack by itself, for code that needs a larger one. */
uint64_t cuda_limit_state(CUlimit limit) {
    uint64_t state = cuda_mixed(cuda_mixed((uintptr_t)cuda_current_context()) + counted(&contexts_ended));
    state = cuda_mixed(state + counted(&limits_set));
    return limit == CU_LIMIT_STACK_SIZE ? cuda_mixed(state + counted(&code_readied)) : state;
}

/* ---- Kernels and their functions ------------------------------------------------------------- */

void cuda_note_kernel(CUkernel kernel) {
    struct cuda_code *object = cuda_code_of(kernel);
    if (!object)
        return;
    object->is_kernel = 1;
    __atomic_store_n(&object->function, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&object->attributes_version, 0, __ATOMIC_RELEASE);
}

void cuda_note_kernels(const CUkernel *kernels, unsigned int count) {
    for (unsigned int i = 0; kernels && i < count; i++)
        cuda_note_kernel(kernels[i]);
}

int cuda_is_kernel(CUfunction function) {
    const struct cuda_code *object = cuda_code_of(function);
    return object && object->is_kernel;
}

/* The function of the kernel in the current context, if it is known. Threads with different contexts take turns: a function is
 * believed only if it is the same before and after a look at whose it is. */
static CUfunction known_function(const struct cuda_code *object) {
    CUfunction function = __atomic_load_n(&object->function, __ATOMIC_ACQUIRE);
    int fits = function && __atomic_load_n(&object->function_context, __ATOMIC_ACQUIRE) == cuda_current_context()
               && counted(&object->function_epoch) == cuda_functions_epoch();
    return fits && __atomic_load_n(&object->function, __ATOMIC_ACQUIRE) == function ? function : NULL;
}

int cuda_knows_function(CUkernel kernel) {
    const struct cuda_code *object = cuda_code_of(kernel);
    return object && object->is_kernel && cuda_no_sticky_error() && known_function(object);
}

CUresult cuda_give_function(CUfunction *function, CUkernel kernel) {
    *function = known_function(cuda_code_of(kernel));
    return *function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void cuda_keep_function(CUkernel kernel, CUfunction function) {
    struct cuda_code *object = cuda_code_of(kernel);
    if (!object)
        return;
    struct cuda_code *code = cuda_code_of(function);
    if (code)
        __atomic_store_n(&code->kernel, kernel, __ATOMIC_RELEASE);
    __atomic_store_n(&object->function, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&object->function_context, cuda_current_context(), __ATOMIC_RELEASE);
    __atomic_store_n(&object->function_epoch, cuda_functions_epoch(), __ATOMIC_RELEASE);
    __atomic_store_n(&object->function, function, __ATOMIC_RELEASE);
}

/* The function of the kernel in the current context; a function is itself. */
CUfunction cuda_function(CUfunction value) {
    const struct cuda_code *object = cuda_code_of(value);
    if (!object || !object->is_kernel)
        return value;
    CUfunction function = known_function(object);
    return function || cuKernelGetFunction(&function, (CUkernel)value) == CUDA_SUCCESS ? function : NULL;
}
