/* Functions that bindings of other languages call: what is equal natively and remotely.
 *   slots MODEL
 * MODEL adds two numbers: `in`, int32 of 1 x 2, and `out`, int32 of 1. */
#include <pthread.h>

#include "models.h"

static OrtAllocator *allocator;
static OrtMemoryInfo *memory;

/* Lines of the library's that a function of the program's has got, and those of them that were not for it. */
static struct log {
    int lines, strange;
} logged;

static void log_line(void *param, OrtLoggingLevel severity, const char *category, const char *logid, const char *place, const char *text) {
    struct log *log = param;
    log->lines++;
    log->strange += severity > ORT_LOGGING_LEVEL_FATAL || !category || !logid || !place || !text;
}

static OrtSession *session_of(const char *model, OrtSessionOptions *options) {
    OrtSession *session = NULL;
    told("session", api->CreateSession(env, model, options, &session), NULL);
    return session;
}

static void logs(const char *model) {
    OrtSessionOptions *options = NULL;
    struct log of_session = {0, 0};
    told("options", api->CreateSessionOptions(&options), NULL);
    told("logger", api->SetUserLoggingFunction(options, log_line, &of_session), NULL);
    told("severity", api->SetSessionLogSeverityLevel(options, ORT_LOGGING_LEVEL_VERBOSE), NULL);
    OrtSession *session = session_of(model, options);
    printf("logged: %d, strange: %d\n", of_session.lines > 0, of_session.strange);
    api->ReleaseSession(session);
    api->ReleaseSessionOptions(options);
}

/* A run that is over. */
struct finished {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int over, code;
    size_t count;
    OrtValue **outputs;
};

static void finish(void *data, OrtValue **outputs, size_t count, OrtStatusPtr status) {
    struct finished *finished = data;
    pthread_mutex_lock(&finished->lock);
    finished->over = 1;
    finished->code = status ? (int)api->GetErrorCode(status) : 0;
    finished->count = count;
    finished->outputs = outputs;
    pthread_cond_signal(&finished->changed);
    pthread_mutex_unlock(&finished->lock);
    if (status)
        api->ReleaseStatus(status);
}

static void run_later(OrtSession *session, const char *input, OrtValue *value) {
    const char *const inputs[] = {input}, *const outputs[] = {"out"};
    struct finished finished = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    OrtValue *out = NULL;
    int32_t *sum = NULL;
    const OrtValue *const values[] = {value};
    if (told("later", api->RunAsync(session, NULL, inputs, values, 1, outputs, 1, &out, finish, &finished), NULL))
        return;
    pthread_mutex_lock(&finished.lock);
    while (!finished.over)
        pthread_cond_wait(&finished.changed, &finished.lock);
    pthread_mutex_unlock(&finished.lock);
    printf("over: %d, %zu, %d\n", finished.code, finished.count, finished.outputs == &out);
    if (out)
        told("sum", api->GetTensorMutableData(out, (void **)&sum), NULL);
    printf("sum: %d\n", sum ? *sum : -1);
    api->ReleaseValue(out);
}

static OrtValue *tensor(int32_t *numbers) {
    const int64_t two[] = {1, 2};
    OrtValue *value = NULL;
    told("tensor", api->CreateTensorWithDataAsOrtValue(memory, numbers, 2 * sizeof *numbers, two, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &value), NULL);
    return value;
}

static void runs(const char *model) {
    OrtSessionOptions *options = NULL;
    OrtPrepackedWeightsContainer *packed = NULL;
    OrtSession *session = NULL;
    const OrtMemoryInfo *places[1] = {NULL};
    OrtMemoryInfoDeviceType device = OrtMemoryInfoDeviceType_GPU;
    int32_t numbers[] = {5, 6};
    told("options", api->CreateSessionOptions(&options), NULL);
    told("threads", api->SetIntraOpNumThreads(options, 2), NULL);
    told("container", api->CreatePrepackedWeightsContainer(&packed), NULL);
    told("session", api->CreateSessionWithPrepackedWeightsContainer(env, model, options, packed, &session), NULL);
    OrtValue *value = tensor(numbers);
    run_later(session, "in", value);
    run_later(session, "nothing", value);
    told("inputs", api->SessionGetMemoryInfoForInputs(session, places, 1), NULL);
    api->MemoryInfoGetDeviceType(places[0], &device);
    printf("inputs are on %d\n", device);
    told("outputs", api->SessionGetMemoryInfoForOutputs(session, places, 1), NULL);
    told("no options", api->SetEpDynamicOptions(session, NULL, NULL, 0), NULL);
    api->ReleaseValue(value);
    api->ReleaseSession(session);
    api->ReleasePrepackedWeightsContainer(packed);
    api->ReleaseSessionOptions(options);
}

static void elements(void) {
    const int64_t shape[] = {2, 3, 4}, places[][3] = {{0, 0, 0}, {1, 2, 3}, {1, 0, 2}, {2, 0, 0}, {0, -1, 0}};
    OrtValue *value = NULL, *text = NULL;
    float *first = NULL, *at = NULL;
    size_t bytes = 0, rank = 0;
    int sparse = -1;
    enum ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    const int64_t *known = NULL;
    told("value", api->CreateTensorAsOrtValue(allocator, shape, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value), NULL);
    told("data", api->GetTensorMutableData(value, (void **)&first), NULL);
    for (int i = 0; i < 5; i++)
        if (!told("at", api->TensorAt(value, places[i], 3, (void **)&at), NULL))
            printf("%ld\n", (long)(at - first));
    told("of two dimensions", api->TensorAt(value, places[0], 2, (void **)&at), NULL);
    told("bytes", api->GetTensorSizeInBytes(value, &bytes), NULL);
    told("sparse", api->IsSparseTensor(value, &sparse), NULL);
    told("shape", api->GetTensorElementTypeAndShapeDataReference(value, &type, &known, &rank), NULL);
    printf("%zu bytes, %d, %d of %zu: %ld %ld %ld\n", bytes, sparse, type, rank, (long)known[0], (long)known[1], (long)known[2]);
    told("text", api->CreateTensorAsOrtValue(allocator, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &text), NULL);
    told("text at", api->TensorAt(text, places[0], 1, (void **)&at), NULL);
    api->ReleaseValue(text);
    api->ReleaseValue(value);
}

static void descriptions(const char *model) {
    const char *names[] = {"rows", "columns"}, *found[2] = {NULL, NULL};
    const int64_t shape[] = {-1, 7};
    OrtTensorTypeAndShapeInfo *info = NULL;
    OrtTypeInfo *type = NULL;
    const OrtOptionalTypeInfo *optional = NULL;
    OrtModelMetadata *metadata = NULL;
    char *text = NULL;
    OrtSession *session = session_of(model, NULL);
    told("info", api->CreateTensorTypeAndShapeInfo(&info), NULL);
    told("shape", api->SetDimensions(info, shape, 2), NULL);
    told("names", api->SetSymbolicDimensions(info, names, 2), NULL);
    told("found", api->GetSymbolicDimensions(info, found, 2), NULL);
    printf("%s %s, %d\n", found[0], found[1], api->TensorTypeAndShape_HasShape(info));
    api->ReleaseTensorTypeAndShapeInfo(info);
    told("type", api->SessionGetInputTypeInfo(session, 0, &type), NULL);
    told("optional", api->CastTypeInfoToOptionalTypeInfo(type, &optional), NULL);
    printf("%d\n", optional == NULL);
    api->ReleaseTypeInfo(type);
    told("metadata", api->SessionGetModelMetadata(session, &metadata), NULL);
    told("graph", api->ModelMetadataGetGraphDescription(metadata, allocator, &text), NULL);
    printf("%s\n", text);
    told("free", api->AllocatorFree(allocator, text), NULL);
    api->ReleaseModelMetadata(metadata);
    api->ReleaseSession(session);
}

/* An allocator of the program's, and how much of it is in use. */
static struct {
    OrtAllocator table;
    long given;
} own;

static void *own_alloc(OrtAllocator *this_, size_t size) {
    own.given += this_ == &own.table;
    return malloc(size);
}

static void own_free(OrtAllocator *this_, void *p) {
    own.given -= this_ == &own.table && p;
    free(p);
}

static const OrtMemoryInfo *own_info(const OrtAllocator *this_) {
    return this_ == &own.table ? memory : NULL;
}

static void text_for(const char *what, OrtStatus *status, char *text) {
    if (told(what, status, NULL))
        return;
    printf("%s, %ld\n", text ? text : "(none)", own.given);
    if (text)
        own_free(&own.table, text);
}

static void allocators(const char *model) {
    OrtModelMetadata *metadata = NULL;
    const OrtMemoryInfo *info = NULL;
    char *text = NULL;
    OrtSession *session = session_of(model, NULL);
    own.table = (OrtAllocator){.version = ORT_API_VERSION, .Alloc = own_alloc, .Free = own_free, .Info = own_info};
    OrtStatus *status = api->SessionGetInputName(session, 0, &own.table, &text);
    text_for("input", status, text);
    status = api->SessionGetOutputName(session, 0, &own.table, &text);
    text_for("output", status, text);
    status = api->SessionGetInputName(session, 9, &own.table, &text);
    text_for("no input", status, text);
    told("metadata", api->SessionGetModelMetadata(session, &metadata), NULL);
    status = api->ModelMetadataGetGraphName(metadata, &own.table, &text);
    text_for("graph", status, text);
    status = api->ModelMetadataGetProducerName(metadata, &own.table, &text);
    text_for("producer", status, text);
    status = api->ModelMetadataLookupCustomMetadataMap(metadata, &own.table, "nothing", &text);
    text_for("nothing", status, text);
    void *bytes = NULL;
    told("own bytes", api->AllocatorAlloc(&own.table, 64, &bytes), NULL);
    printf("given: %ld\n", own.given);
    told("free", api->AllocatorFree(&own.table, bytes), NULL);
    told("info", api->AllocatorGetInfo(&own.table, &info), NULL);
    printf("given: %ld, %d\n", own.given, info == memory);
    api->ReleaseModelMetadata(metadata);
    api->ReleaseSession(session);
}

static void pairs(void) {
    OrtKeyValuePairs *pairs = NULL, *entries = NULL;
    OrtSessionOptions *options = NULL;
    OrtRunOptions *run = NULL;
    const char *const *keys = NULL, *const *values = NULL;
    size_t count = 0;
    api->CreateKeyValuePairs(&pairs);
    api->AddKeyValuePair(pairs, "b", "2");
    api->AddKeyValuePair(pairs, "a", "1");
    api->AddKeyValuePair(pairs, "c", "3");
    api->RemoveKeyValuePair(pairs, "b");
    api->GetKeyValuePairs(pairs, &keys, &values, &count);
    for (size_t i = 0; i < count; i++)
        printf("%s = %s\n", keys[i], values[i]);
    const char *none = api->GetKeyValue(pairs, "z");
    printf("%s %d\n", api->GetKeyValue(pairs, "a"), none == NULL);
    api->ReleaseKeyValuePairs(pairs);
    told("options", api->CreateSessionOptions(&options), NULL);
    told("entry", api->AddSessionConfigEntry(options, "key", "value"), NULL);
    told("entries", api->GetSessionOptionsConfigEntries(options, &entries), NULL);
    printf("%s\n", api->GetKeyValue(entries, "key"));
    api->ReleaseKeyValuePairs(entries);
    told("custom", api->EnableOrtCustomOps(options), NULL);
    told("policy", api->SessionOptionsSetEpSelectionPolicy(options, OrtExecutionProviderDevicePolicy_PREFER_CPU), NULL);
    told("cancel", api->SessionOptionsSetLoadCancellationFlag(options, false), NULL);
    told("external", api->AddExternalInitializers(options, NULL, NULL, 0), NULL);
    api->ReleaseSessionOptions(options);
    told("run", api->CreateRunOptions(&run), NULL);
    told("entry", api->AddRunConfigEntry(run, "key", "value"), NULL);
    printf("%s\n", api->GetRunConfigEntry(run, "key"));
    api->ReleaseRunOptions(run);
}

static void devices(void) {
    const OrtEpDevice *const *devices = NULL;
    size_t count = 0;
    OrtMemoryInfo *made = NULL;
    OrtCANNProviderOptions *cann = NULL;
    OrtDnnlProviderOptions *dnnl = NULL;
    OrtThreadingOptions *threads = NULL;
    told("devices", api->GetEpDevices(env, &devices, &count), NULL);
    for (size_t i = 0; i < count; i++) {
        const OrtHardwareDevice *hardware = api->EpDevice_Device(devices[i]);
        printf("%s, %s: %d, %s\n", api->EpDevice_EpName(devices[i]), api->EpDevice_EpVendor(devices[i]), api->HardwareDevice_Type(hardware),
               api->HardwareDevice_Vendor(hardware));
        printf("%x %x %d\n", api->HardwareDevice_VendorId(hardware), api->HardwareDevice_DeviceId(hardware),
               api->HardwareDevice_Metadata(hardware) != NULL);
        printf("%d %d\n", api->EpDevice_EpMetadata(devices[i]) != NULL, api->EpDevice_EpOptions(devices[i]) != NULL);
    }
    told("memory", api->CreateMemoryInfo_V2("own", OrtMemoryInfoDeviceType_CPU, 0, 0, OrtDeviceMemoryType_DEFAULT, 0, OrtDeviceAllocator, &made), NULL);
    printf("%d %u\n", api->MemoryInfoGetDeviceMemType(made), api->MemoryInfoGetVendorId(made));
    api->ReleaseMemoryInfo(made);
    told("cann", api->CreateCANNProviderOptions(&cann), NULL);
    told("dnnl", api->CreateDnnlProviderOptions(&dnnl), NULL);
    api->ReleaseDnnlProviderOptions(dnnl);
    told("threads", api->CreateThreadingOptions(&threads), NULL);
    told("zero", api->SetGlobalDenormalAsZero(threads), NULL);
    told("affinity", api->SetGlobalIntraOpThreadAffinity(threads, "1"), NULL);
    api->ReleaseThreadingOptions(threads);
}

static void adapters(void) {
    OrtLoraAdapter *adapter = NULL;
    char bytes[64] = "no adapter";
    printf("no file: %d\n", told("adapter", api->CreateLoraAdapter("/nowhere", allocator, &adapter), NULL) != 0);
    printf("no adapter: %d\n", told("bytes", api->CreateLoraAdapterFromArray(bytes, sizeof bytes, allocator, &adapter), NULL) != 0);
}

int main(int argc, char **argv) {
    const OrtApiBase *base = OrtGetApiBase();
    OrtEnvCreationOptions options = {.version = ORT_API_VERSION, .logging_severity_level = ORT_LOGGING_LEVEL_FATAL, .log_id = "slots",
                                     .custom_logging_function = log_line, .custom_logging_param = &logged};
    api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    if (argc < 2 || !api)
        return 4;
    told("environment", api->CreateEnvWithOptions(&options, &env), NULL);
    told("memory", api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory), NULL);
    told("allocator", api->GetAllocatorWithDefaultOptions(&allocator), NULL);
    logs(argv[1]);
    runs(argv[1]);
    elements();
    descriptions(argv[1]);
    allocators(argv[1]);
    pairs();
    devices();
    adapters();
    api->ReleaseMemoryInfo(memory);
    api->ReleaseEnv(env);
    printf("strange: %d\n", logged.strange);
    return 0;
}
