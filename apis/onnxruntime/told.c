/* What the API server has told of tensors: most questions about them are answered here, without a call. */
#include <aviary/guest.h>
#include <stdint.h>
#include <string.h>

#include "external.h"
#include "onnxruntime_types.h"

OrtStatus *give_number(int32_t *to, int64_t number) {
    *to = (int32_t)number;
    return NULL;
}

OrtStatus *give_count(size_t *to, uint64_t count) {
    *to = count;
    return NULL;
}

static struct told_tensor *told_of(const OrtTensorTypeAndShapeInfo *info) {
    return metadata(struct told_tensor, (OrtTensorTypeAndShapeInfo *)(uintptr_t)info);
}

/* As many dimensions as there is room for, as the library does. */
OrtStatus *give_shape(const OrtTensorTypeAndShapeInfo *info, int64_t *to, size_t room) {
    const struct told_tensor *told = told_of(info);
    memcpy(to, told->shape, (room < told->rank ? room : told->rank) * sizeof *to);
    return NULL;
}

/* Dimensions of a value have no names. */
OrtStatus *give_symbols(const OrtTensorTypeAndShapeInfo *info, const char **to, size_t room) {
    const struct told_tensor *told = told_of(info);
    for (size_t i = 0; i < room && i < told->rank; i++)
        to[i] = "";
    return NULL;
}

/* Two threads may ask at the same time; each has a handle then, and the second one is remembered. */
OrtStatus *give_memory(const OrtValue *value, const OrtMemoryInfo **to) {
    struct told_tensor *told = metadata(struct told_tensor, (OrtValue *)(uintptr_t)value);
    OrtMemoryInfo *memory = (OrtMemoryInfo *)(uintptr_t)__atomic_load_n(&told->handed, __ATOMIC_ACQUIRE);
    if (!memory) {
        OrtStatus *status = aviary_onnxruntime_memory(value, &memory);
        if (status)
            return status;
        struct told_memory *about = metadata(struct told_memory, memory);
        if (about)
            *about = (struct told_memory){1, 1, told->device, told->id, told->memory_type, told->allocator_type};
        __atomic_store_n(&told->handed, (uint64_t)(uintptr_t)memory, __ATOMIC_RELEASE);
    }
    *to = memory;
    return NULL;
}

/* What is told of a value, to a handle of a type. */
static void pass_on(const struct told_tensor *from, struct told_tensor *to) {
    if (from && to && from->known) {
        *to = *from;
        to->handed = 0;
    }
}

OrtStatus *give_description(const OrtTypeInfo *type, const OrtTensorTypeAndShapeInfo **to) {
    struct told_tensor *told = metadata(struct told_tensor, (OrtTypeInfo *)(uintptr_t)type);
    OrtTensorTypeAndShapeInfo *info = (OrtTensorTypeAndShapeInfo *)(uintptr_t)__atomic_load_n(&told->handed, __ATOMIC_ACQUIRE);
    if (!info) {
        OrtStatus *status = aviary_onnxruntime_description(type, &info);
        if (status)
            return status;
        pass_on(told, told_of(info));
        __atomic_store_n(&told->handed, (uint64_t)(uintptr_t)info, __ATOMIC_RELEASE);
    }
    *to = info;
    return NULL;
}

void pass_on_type(const OrtValue *value, OrtTypeInfo *const *to) {
    pass_on(metadata(struct told_tensor, (OrtValue *)(uintptr_t)value), to ? metadata(struct told_tensor, *to) : NULL);
}

void pass_on_shape(const OrtValue *value, OrtTensorTypeAndShapeInfo *const *to) {
    pass_on(metadata(struct told_tensor, (OrtValue *)(uintptr_t)value), to ? told_of(*to) : NULL);
}

/* The application changes a description: from now on the library is asked. */
void change_shape(OrtTensorTypeAndShapeInfo *info) {
    struct told_tensor *told = told_of(info);
    if (told)
        told->known = 0;
}

/* True of memory that every library has: making it cannot fail. */
int is_cpu(const char *name) {
    return name && !strcmp(name, "Cpu");
}

void note_memory(const char *name, OrtMemoryInfo *const *to) {
    struct told_memory *told = to && is_cpu(name) ? metadata(struct told_memory, *to) : NULL;
    if (told)
        *told = (struct told_memory){.known = 1, .device = OrtMemoryInfoDeviceType_CPU};
}

/* The address of one element of a tensor. */
OrtStatus *tensor_at(OrtValue *value, const int64_t *place, size_t count, void **to) {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    const struct told_tensor *told = metadata(struct told_tensor, value);
    uint64_t at = 0;
    char *data = NULL;
    if (!api)
        return made_status(1);
    if (!told || !told->known || !to)
        return made_status(2);
    if (!told->element_bytes)
        return api->CreateStatus(ORT_INVALID_ARGUMENT, "this API does not support strings");
    if (count != told->rank)
        return api->CreateStatus(ORT_INVALID_ARGUMENT, "location dimensions do not match shape size");
    for (size_t i = 0; i < count; i++) {
        if (place[i] < 0 || place[i] >= told->shape[i])
            return api->CreateStatus(ORT_INVALID_ARGUMENT, "invalid location range");
        at = at * (uint64_t)told->shape[i] + (uint64_t)place[i];
    }
    OrtStatus *status = api->GetTensorMutableData(value, (void **)&data);
    if (!status)
        *to = data + at * told->element_bytes;
    return status;
}
