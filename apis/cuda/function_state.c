/* What remembered answers about a function depend on besides the function: what it was told about its launches, and
 * whether a context has ended, which takes functions along whose modules nobody unloaded. */
#include "guest.h"

static uint64_t contexts_ended, settings_of_all;

static uint64_t mixed(uint64_t hash, uint64_t value) {
    for (int byte = 0; byte < 8; byte++)
        hash = (hash ^ (value >> 8 * byte & 0xff)) * 0x100000001b3;
    return hash;
}

void cuda_context_ended(void) {
    __atomic_fetch_add(&contexts_ended, 1, __ATOMIC_RELEASE);
}

/* The same settings make the same state: many applications make theirs before every launch. */
void cuda_note_setting(CUfunction function, unsigned int which, int value) {
    struct cuda_object *object = cuda_object_of(function);
    if (object && which < CUDA_SETTINGS)
        __atomic_store_n(&object->setting[which], value, __ATOMIC_RELEASE);
}

/* A kernel's settings are those of its function in every context. */
void cuda_note_kernel_setting(CUkernel kernel, unsigned int which, int value) {
    struct cuda_object *object = cuda_object_of(kernel);
    if (object && which < CUDA_SETTINGS && __atomic_exchange_n(&object->setting[which], value, __ATOMIC_ACQ_REL) != value)
        __atomic_fetch_add(&settings_of_all, 1, __ATOMIC_RELEASE);
}

void cuda_note_context_setting(void) {
    __atomic_fetch_add(&settings_of_all, 1, __ATOMIC_RELEASE);
}

uint64_t cuda_functions_epoch(void) {
    return __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE);
}

uint64_t cuda_function_state(CUfunction function) {
    const struct cuda_object *object = cuda_object_of(function);
    uint64_t state = mixed(cuda_functions_epoch(), __atomic_load_n(&settings_of_all, __ATOMIC_ACQUIRE));
    for (int i = 0; object && i < CUDA_SETTINGS; i++)
        state = mixed(state, (uint32_t)__atomic_load_n(&object->setting[i], __ATOMIC_ACQUIRE));
    return state;
}
