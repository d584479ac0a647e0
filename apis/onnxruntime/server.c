/* The vendor's tables, and what it says of statuses and tensors. */
#include <aviary/server.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "onnxruntime_types.h"

const void *vendor_base(void) {
    const OrtApiBase *(*get)(void) = aviary_function("OrtGetApiBase");
    return get ? get() : NULL;
}

/* Bytes of the table of each version: it ends behind the last function that came with that version. */
#define ENDS(last) (offsetof(OrtApi, last) + sizeof(void *))
static const size_t table_bytes[ORT_API_VERSION + 1] = {
    [1] = ENDS(ReleaseCustomOpDomain),
    [2] = ENDS(ReleaseModelMetadata),
    [3] = ENDS(AddFreeDimensionOverrideByName),
    [4] = ENDS(ReleaseAvailableProviders),
    [5] = ENDS(SetGlobalSpinControl),
    [6] = ENDS(ReleaseArenaCfg),
    [7] = ENDS(GetCurrentGpuDeviceId),
    [8] = ENDS(CreateSessionFromArrayWithPrepackedWeightsContainer),
    [9] = ENDS(GetSparseTensorIndices),
    [10] = ENDS(SynchronizeBoundOutputs),
    [11] = ENDS(SessionOptionsAppendExecutionProvider_MIGraphX),
    [12] = ENDS(ReleaseKernelInfo),
    [13] = ENDS(ReleaseCANNProviderOptions),
    [14] = ENDS(GetSessionConfigEntry),
    [15] = ENDS(GetBuildInfoString),
    [16] = ENDS(KernelContext_GetResource),
    [17] = ENDS(SessionOptionsAppendExecutionProvider_OpenVINO_V2),
    [18] = ENDS(AddExternalInitializersFromFilesInMemory),
    [19] = ENDS(AddExternalInitializersFromFilesInMemory),
    [20] = ENDS(SetEpDynamicOptions),
    [21] = ENDS(SetEpDynamicOptions),
    [22] = ENDS(GetEpApi),
    [23] = ENDS(CreateExternalInitializerInfo),
    [ORT_API_VERSION] = sizeof(OrtApi),
};

/* The table of a library that is older than the header, as far as it goes; NULL behind. Written once, read by all calls. */
static OrtApi older;
static const OrtApi *found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_api(void) {
    const OrtApiBase *base = vendor_base();
    unsigned int version = 0;
    if (!base)
        return;
    /* "1.17.3" has version 17. It is not tried: the library prints a line for each version that it lacks. */
    if (sscanf(base->GetVersionString(), "1.%u", &version) != 1 || version >= ORT_API_VERSION) {
        found = base->GetApi(ORT_API_VERSION);
        return;
    }
    const OrtApi *api = base->GetApi(version);
    if (!api)
        return;
    memcpy(&older, api, table_bytes[version]);
    found = &older;
}

const void *vendor_api(void) {
    pthread_once(&once, find_api);
    return found;
}

const void *default_allocator(void) {
    const OrtApi *api = vendor_api();
    OrtAllocator *allocator = NULL;
    if (api) {
        OrtStatus *status = api->GetAllocatorWithDefaultOptions(&allocator);
        if (status)
            api->ReleaseStatus(status);
    }
    return allocator;
}

int64_t status_code(OrtStatus *status) {
    const OrtApi *api = vendor_api();
    return api ? api->GetErrorCode(status) : ORT_FAIL;
}

const char *status_message(OrtStatus *status) {
    const OrtApi *api = vendor_api();
    return api ? api->GetErrorMessage(status) : NULL;
}

/* Bytes of one element; 0 of strings, and of what has none. */
static uint64_t element_bytes(uint32_t type) {
    switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ:
        return 1;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
        return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
        return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64:
        return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128:
        return 16;
    default:
        return 0;
    }
}

/* Bytes of a tensor's data; 0 of one of strings, which no application can read there. */
uint64_t tensor_bytes(const OrtValue *value) {
    const OrtApi *api = vendor_api();
    OrtTensorTypeAndShapeInfo *info = NULL;
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    size_t count = 0;
    if (!api)
        return 0;
    OrtStatus *status = api->GetTensorTypeAndShape(value, &info);
    if (!status)
        status = api->GetTensorElementType(info, &type);
    if (!status)
        status = api->GetTensorShapeElementCount(info, &count);
    if (status) {
        api->ReleaseStatus(status);
        count = 0;
    }
    if (info)
        api->ReleaseTensorTypeAndShapeInfo(info);
    return count * element_bytes(type);
}

/* Bytes that a tensor of this shape takes; as many as there can be if nobody could have them. */
uint64_t shape_bytes(const int64_t *shape, size_t count, uint32_t type) {
    uint64_t bytes = element_bytes(type);
    for (size_t i = 0; shape && i < count; i++) {
        if (shape[i] < 0)
            return 0;
        if (__builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

uint64_t names_bytes(const size_t *lengths, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; lengths && i < count; i++)
        bytes += lengths[i];
    return bytes;
}

/* A late failure is the guest's to notice: the handle that it has named is no object. */
void forget_status(OrtStatus *status) {
    const OrtApi *api = vendor_api();
    if (api && status)
        api->ReleaseStatus(status);
}

static OrtStatus *tell_shape(const OrtApi *api, const OrtTensorTypeAndShapeInfo *info, struct told_tensor *to) {
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    size_t rank = 0, elements = 0;
    OrtStatus *status = api->GetTensorElementType(info, &type);
    if (!status)
        status = api->GetDimensionsCount(info, &rank);
    if (!status && rank <= sizeof to->shape / sizeof *to->shape)
        status = api->GetDimensions(info, to->shape, rank);
    if (!status)
        status = api->GetTensorShapeElementCount(info, &elements);
    to->element_type = (int32_t)type;
    to->rank = (uint32_t)rank;
    to->elements = elements;
    to->element_bytes = (uint32_t)element_bytes(type);
    return status;
}

static OrtStatus *tell_memory(const OrtApi *api, const OrtMemoryInfo *memory, struct told_tensor *to) {
    OrtMemoryInfoDeviceType device = OrtMemoryInfoDeviceType_CPU;
    OrtMemType type = OrtMemTypeDefault;
    OrtAllocatorType allocator = OrtInvalidAllocator;
    OrtStatus *status = api->MemoryInfoGetId(memory, &to->id);
    if (!status)
        status = api->MemoryInfoGetMemType(memory, &type);
    if (!status)
        status = api->MemoryInfoGetType(memory, &allocator);
    api->MemoryInfoGetDeviceType(memory, &device);
    to->memory_type = type;
    to->allocator_type = allocator;
    to->device = (int32_t)device;
    return status;
}

/* All of a tensor but its content. Nothing of other values, of tensors with more dimensions, and by libraries that cannot say it. */
void tell_value(OrtValue *value, struct told_tensor *to) {
    const OrtApi *api = vendor_api();
    OrtTensorTypeAndShapeInfo *info = NULL;
    const OrtMemoryInfo *memory = NULL;
    int tensor = 0;
    if (!api || !api->GetTensorMemoryInfo || !api->MemoryInfoGetDeviceType)
        return;
    OrtStatus *status = api->IsTensor(value, &tensor);
    if (!status && tensor)
        status = api->GetTensorTypeAndShape(value, &info);
    if (!status && info)
        status = tell_shape(api, info, to);
    if (!status && info)
        status = api->GetTensorMemoryInfo(value, &memory);
    if (!status && memory)
        status = tell_memory(api, memory, to);
    to->known = !status && memory && to->rank <= sizeof to->shape / sizeof *to->shape;
    if (status)
        api->ReleaseStatus(status);
    if (info)
        api->ReleaseTensorTypeAndShapeInfo(info);
}

static OrtStatus *memory_of(const OrtValue *value, OrtMemoryInfo **out) {
    return vendor_api() ? ((const OrtApi *)vendor_api())->GetTensorMemoryInfo(value, (const OrtMemoryInfo **)out) : NULL;
}

static OrtStatus *description_of(const OrtTypeInfo *type, OrtTensorTypeAndShapeInfo **out) {
    return vendor_api() ? ((const OrtApi *)vendor_api())->CastTypeInfoToTensorInfo(type, (const OrtTensorTypeAndShapeInfo **)out) : NULL;
}

void *memory_function(void) {
    return (void *)(uintptr_t)memory_of;
}

void *description_function(void) {
    return (void *)(uintptr_t)description_of;
}
