/* What is known of values without asking for it, by every way to get a value.
 *   told MODEL          all that can be asked, twice: equal natively and remotely
 *   told MODEL runs N   runs the model N times, as a binding does that asks each output for all of it
 * MODEL adds two numbers: `in`, int32 of 1 x 2, and `out`, int32 of 1. */
#include "models.h"

static OrtMemoryInfo *memory;

static void about_shape(const OrtTensorTypeAndShapeInfo *info) {
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    size_t rank = 0, elements = 0;
    int64_t shape[12] = {0};
    const char *names[12] = {0};
    told("type", api->GetTensorElementType(info, &type), NULL);
    told("rank", api->GetDimensionsCount(info, &rank), NULL);
    told("one", api->GetDimensions(info, shape, rank ? 1 : 0), NULL);
    printf("%d %zu: %ld %ld\n", type, rank, (long)shape[0], (long)shape[1]);
    told("all", api->GetDimensions(info, shape, 12), NULL);
    told("names", api->GetSymbolicDimensions(info, names, 12), NULL);
    told("elements", api->GetTensorShapeElementCount(info, &elements), NULL);
    for (size_t i = 0; i < 12; i++)
        printf(" %ld%s", (long)shape[i], !names[i] ? " without a name" : *names[i] ? names[i] : "");
    printf(": %zu\n", elements);
}

static void about_memory(const OrtValue *value) {
    const OrtMemoryInfo *of = NULL, *again = NULL;
    OrtMemoryInfoDeviceType device = OrtMemoryInfoDeviceType_GPU;
    OrtMemType type = OrtMemTypeCPUInput;
    OrtAllocatorType allocator = OrtInvalidAllocator;
    const char *name = NULL;
    int id = -1, same = -1;
    told("memory", api->GetTensorMemoryInfo(value, &of), NULL);
    if (!of)
        return;
    told("memory again", api->GetTensorMemoryInfo(value, &again), NULL);
    told("id", api->MemoryInfoGetId(of, &id), NULL);
    told("memory type", api->MemoryInfoGetMemType(of, &type), NULL);
    told("allocator", api->MemoryInfoGetType(of, &allocator), NULL);
    told("name", api->MemoryInfoGetName(of, &name), NULL);
    told("compare", api->CompareMemoryInfo(of, memory, &same), NULL);
    api->MemoryInfoGetDeviceType(of, &device);
    printf("%d: device %d, %d, %d, %s, %d\n", of == again, device, id, type, name ? name : "-", same);
    printf("allocator %d\n", allocator);
}

static void about_type(const OrtValue *value) {
    OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL, *again = NULL;
    const OrtMapTypeInfo *map = NULL;
    enum ONNXType kind = ONNX_TYPE_UNKNOWN;
    told("type", api->GetTypeInfo(value, &type), NULL);
    told("kind", api->GetOnnxTypeFromTypeInfo(type, &kind), NULL);
    told("cast", api->CastTypeInfoToTensorInfo(type, &tensor), NULL);
    told("cast again", api->CastTypeInfoToTensorInfo(type, &again), NULL);
    told("cast to a map", api->CastTypeInfoToMapTypeInfo(type, &map), NULL);
    printf("%d, %d, %d\n", kind, tensor == again, map == NULL);
    if (tensor)
        about_shape(tensor);
    api->ReleaseTypeInfo(type);
}

/* What the application changes is as it says from then on. */
static void changes(const OrtValue *value) {
    OrtTensorTypeAndShapeInfo *info = NULL;
    const int64_t other[] = {3, 1, 4};
    if (told("shape", api->GetTensorTypeAndShape(value, &info), NULL))
        return;
    about_shape(info);
    told("dimensions", api->SetDimensions(info, other, 3), NULL);
    about_shape(info);
    told("element", api->SetTensorElementType(info, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE), NULL);
    about_shape(info);
    api->ReleaseTensorTypeAndShapeInfo(info);
}

static void about(const char *what, const OrtValue *value) {
    enum ONNXType kind = ONNX_TYPE_UNKNOWN;
    int tensor = -1, has = -1;
    printf("--- %s\n", what);
    for (int round = 0; value && round < 2; round++) {
        told("tensor", api->IsTensor(value, &tensor), NULL);
        told("value", api->HasValue(value, &has), NULL);
        told("kind", api->GetValueType(value, &kind), NULL);
        printf("%d %d %d\n", tensor, has, kind);
        about_memory(value);
        about_type(value);
        changes(value);
    }
}

static OrtSession *session_of(const char *model) {
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    told("options", api->CreateSessionOptions(&options), NULL);
    told("threads", api->SetIntraOpNumThreads(options, 1), NULL);
    told("session", api->CreateSession(env, model, options, &session), NULL);
    api->ReleaseSessionOptions(options);
    return session;
}

static OrtValue *input(OrtMemoryInfo *where, int32_t *numbers) {
    const int64_t two[] = {1, 2};
    OrtValue *in = NULL;
    OrtStatus *status = api->CreateTensorWithDataAsOrtValue(where, numbers, 2 * sizeof *numbers, two, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &in);
    return status ? NULL : in;
}

static OrtStatus *add(OrtSession *session, const OrtValue *in, OrtValue **out) {
    const char *const inputs[] = {"in"}, *const outputs[] = {"out"};
    return api->Run(session, NULL, inputs, &in, 1, outputs, 1, out);
}

static void asked(const char *model) {
    static const int64_t shape[] = {1, 2, 1, 3, 1, 1, 2, 1, 1}, none[] = {4, 0};
    int32_t numbers[] = {3, 4};
    OrtAllocator *allocator = NULL;
    OrtValue *values[8] = {0}, *sequence = NULL, *member = NULL, *out = NULL;
    OrtSession *session = session_of(model);
    told("allocator", api->GetAllocatorWithDefaultOptions(&allocator), NULL);
    for (size_t rank = 0; rank <= 9; rank += rank ? 4 : 1) {
        told("tensor", api->CreateTensorAsOrtValue(allocator, shape, rank, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &values[0]), NULL);
        about("of a shape", values[0]);
        api->ReleaseValue(values[0]);
    }
    told("empty", api->CreateTensorAsOrtValue(allocator, none, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, &values[0]), NULL);
    about("empty", values[0]);
    told("strings", api->CreateTensorAsOrtValue(allocator, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &values[1]), NULL);
    about("strings", values[1]);
    values[2] = input(memory, numbers);
    about("the application's", values[2]);
    values[3] = input(memory, numbers);
    told("sequence", api->CreateValue((const OrtValue *const *)values + 2, 2, ONNX_TYPE_SEQUENCE, &sequence), NULL);
    about("a sequence", sequence);
    told("member", api->GetValue(sequence, 1, allocator, &member), NULL);
    about("of a sequence", member);
    for (int run = 0; run < 2; run++) {
        told("run", add(session, values[2], &out), NULL);
        about(run ? "an output that was there" : "an output", out);
    }
    api->ReleaseValue(out);
    api->ReleaseValue(member);
    api->ReleaseValue(sequence);
    for (size_t i = 0; i < 4; i++)
        api->ReleaseValue(values[i]);
    api->ReleaseSession(session);
}

/* As the Rust crate `ort` does. Answers the sum of all results, less than 0 if something failed. */
static int code(OrtStatus *status) {
    if (status)
        api->ReleaseStatus(status);
    return status != NULL;
}

static long long runs(const char *model, int count) {
    OrtSession *session = session_of(model);
    long long sum = 0;
    int failed = 0;
    for (int run = 0; run < count; run++) {
        int32_t numbers[] = {run, 2}, *result = NULL;
        OrtMemoryInfo *own = NULL;
        const OrtMemoryInfo *of = NULL;
        OrtValue *out = NULL;
        OrtTypeInfo *type = NULL;
        const OrtTensorTypeAndShapeInfo *info = NULL;
        enum ONNXType kind = ONNX_TYPE_UNKNOWN;
        ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        OrtMemoryInfoDeviceType device = OrtMemoryInfoDeviceType_GPU;
        int tensor = 0;
        size_t rank = 0;
        int64_t shape[4] = {0};
        const char *names[4] = {0};
        failed += code(api->CreateMemoryInfo("Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault, &own));
        OrtValue *in = input(own, numbers);
        failed += code(add(session, in, &out));
        failed += code(api->GetTypeInfo(out, &type));
        failed += code(api->IsTensor(out, &tensor));
        failed += code(api->GetTensorMemoryInfo(out, &of));
        failed += code(api->GetOnnxTypeFromTypeInfo(type, &kind));
        failed += code(api->CastTypeInfoToTensorInfo(type, &info));
        failed += code(api->GetTensorElementType(info, &element));
        failed += code(api->GetDimensionsCount(info, &rank));
        failed += code(api->GetDimensions(info, shape, rank));
        failed += code(api->GetSymbolicDimensions(info, names, rank));
        api->ReleaseTypeInfo(type);
        api->ReleaseValue(in);
        api->ReleaseMemoryInfo(own);
        api->MemoryInfoGetDeviceType(of, &device);
        failed += code(api->GetTensorMutableData(out, (void **)&result));
        sum += result && tensor && device == OrtMemoryInfoDeviceType_CPU && rank == 1 ? *result * shape[0] : -1;
        api->ReleaseValue(out);
    }
    api->ReleaseSession(session);
    return failed ? -failed : sum;
}

int main(int argc, char **argv) {
    const OrtApiBase *base = OrtGetApiBase();
    api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    if (argc < 2 || !api || api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "told", &env) ||
        api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory))
        return 4;
    if (argc > 3)
        printf("sum %lld\n", runs(argv[1], atoi(argv[3])));
    else
        asked(argv[1]);
    api->ReleaseMemoryInfo(memory);
    api->ReleaseEnv(env);
    return 0;
}
