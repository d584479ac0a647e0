/* Kernels: "fill" (buffer, uint8_t value) and "axpy" (buffer y, buffer x, int32_t a), on bytes. */
#include <stdlib.h>
#include <string.h>

#include "object.h"

struct argument { bool is_buffer; size_t bytes; };

struct program {
    const char *name;
    uint32_t count;
    struct argument arguments[3];
};

static const struct program programs[] = {
    {"fill", 2, {{true, sizeof(ta_buffer)}, {false, sizeof(uint8_t)}}},
    {"axpy", 3, {{true, sizeof(ta_buffer)}, {true, sizeof(ta_buffer)}, {false, sizeof(int32_t)}}},
};

struct ta_kernel_st {
    struct object object;
    const struct program *program;
    uint64_t cost;
    ta_buffer set[2];
};

ta_status ta_kernel_create(ta_device device, const char *name, ta_kernel *kernel) {
    if (!object_check(device, KIND_DEVICE))
        return TA_INVALID_DEVICE;
    if (!name || !kernel)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        if (strcmp(name, programs[i].name) != 0)
            continue;
        struct ta_kernel_st *k = object_new(KIND_KERNEL, sizeof *k);
        if (!k)
            return TA_OUT_OF_MEMORY;
        k->program = &programs[i];
        *kernel = k;
        return TA_OK;
    }
    return TA_INVALID_VALUE;
}

ta_status ta_kernel_destroy(ta_kernel kernel) {
    bool found;
    free(object_release(kernel, KIND_KERNEL, &found));
    return found ? TA_OK : TA_INVALID_KERNEL;
}

ta_status ta_kernel_argument_count(ta_kernel kernel, uint32_t *count) {
    struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    if (!k)
        return TA_INVALID_KERNEL;
    if (!count)
        return TA_INVALID_VALUE;
    *count = k->program->count;
    return TA_OK;
}

ta_status ta_kernel_argument(ta_kernel kernel, uint32_t index, uint32_t *is_buffer, size_t *bytes) {
    struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    if (!k)
        return TA_INVALID_KERNEL;
    if (index >= k->program->count || !is_buffer || !bytes)
        return TA_INVALID_VALUE;
    *is_buffer = k->program->arguments[index].is_buffer;
    *bytes = k->program->arguments[index].bytes;
    return TA_OK;
}

ta_status ta_kernel_launch(ta_kernel kernel, void **arguments) {
    struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    if (!k)
        return TA_INVALID_KERNEL;
    if (!arguments)
        return TA_INVALID_VALUE;
    struct ta_buffer_st *to = object_check(*(ta_buffer *)arguments[0], KIND_BUFFER);
    if (!to)
        return TA_INVALID_BUFFER;
    k->cost += to->bytes;
    if (k->program == &programs[0]) {
        memset(to->data, *(uint8_t *)arguments[1], to->bytes);
        return TA_OK;
    }
    struct ta_buffer_st *from = object_check(*(ta_buffer *)arguments[1], KIND_BUFFER);
    if (!from)
        return TA_INVALID_BUFFER;
    int32_t a = *(int32_t *)arguments[2];
    for (size_t i = 0; i < to->bytes && i < from->bytes; i++)
        to->data[i] = (unsigned char)(to->data[i] + a * from->data[i]);
    return TA_OK;
}

uint64_t ta_kernel_cost(ta_kernel kernel) {
    struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    return k ? k->cost : 0;
}

ta_status ta_kernel_set(ta_kernel kernel, uint32_t place, ta_buffer buffer) {
    struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    if (!k)
        return TA_INVALID_KERNEL;
    if (place >= sizeof k->set / sizeof *k->set)
        return TA_INVALID_VALUE;
    if (buffer && !object_check(buffer, KIND_BUFFER))
        return TA_INVALID_BUFFER;
    k->set[place] = buffer;
    return TA_OK;
}

ta_status ta_kernel_copy(ta_kernel kernel, ta_kernel *copy) {
    const struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    if (!k)
        return TA_INVALID_KERNEL;
    struct ta_kernel_st *made = copy ? object_new(KIND_KERNEL, sizeof *made) : NULL;
    if (!made)
        return copy ? TA_OUT_OF_MEMORY : TA_INVALID_VALUE;
    made->program = k->program;
    memcpy(made->set, k->set, sizeof made->set);
    *copy = made;
    return TA_OK;
}

ta_status ta_kernel_run(ta_kernel kernel, uint8_t value) {
    const struct ta_kernel_st *k = object_check(kernel, KIND_KERNEL);
    if (!k)
        return TA_INVALID_KERNEL;
    for (size_t i = 0; i < sizeof k->set / sizeof *k->set; i++) {
        struct ta_buffer_st *to = k->set[i];
        if (!to)
            continue;
        if (!object_check(to, KIND_BUFFER))
            abort();
        memset(to->data, value, to->bytes);
        /* A thread that ends it meanwhile would have had the bytes of another buffer written. */
        if (!object_check(to, KIND_BUFFER))
            abort();
    }
    return object_check(kernel, KIND_KERNEL) ? TA_OK : TA_INVALID_KERNEL;
}
