/* Requests to ONNX Runtime that the tests of other projects do not make.
 *   values MODEL            what is equal natively and remotely
 *   values MODEL remoted    what natively is undefined: foreign and stale handles, memory that is nobody's
 *   values MODEL limited    with a byte of memory for tensors and models
 *   values MODEL hold       runs the model, waits for a line, runs it again
 *   values MODEL time N     prints the nanoseconds of a run, the median of N (at most 100,000)
 * MODEL adds two numbers: `in`, int32 of 1 x 2, and `out`, int32 of 1. */
#include <time.h>

#include "check.h"
#include "onnxruntime_c_api.h"

static const OrtApi *api;
static OrtEnv *env;
static OrtMemoryInfo *memory;
static OrtAllocator *allocator;

/* The code of a status, which is released; 0: success. */
static int code_of(OrtStatus *status) {
    int code = status ? (int)api->GetErrorCode(status) : 0;
    if (status && !strlen(api->GetErrorMessage(status)))
        code = -1;
    if (status)
        api->ReleaseStatus(status);
    return code;
}

static OrtSession *session_of(const char *model, int *code) {
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    *code = code_of(api->CreateSessionOptions(&options));
    code_of(api->SetIntraOpNumThreads(options, 1));
    if (!*code)
        *code = code_of(api->CreateSession(env, model, options, &session));
    api->ReleaseSessionOptions(options);
    return session;
}

static OrtValue *tensor_of(int32_t *data, size_t count, int *code) {
    const int64_t shape[] = {1, (int64_t)count};
    OrtValue *value = NULL;
    *code = code_of(api->CreateTensorWithDataAsOrtValue(memory, data, count * sizeof *data, shape,
                                                        count == 1 ? 1 : 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &value));
    return value;
}

static int sum(OrtSession *session, OrtValue *in, OrtValue **out) {
    const char *const inputs[] = {"in"}, *const outputs[] = {"out"};
    const OrtValue *const values[] = {in};
    return code_of(api->Run(session, NULL, inputs, values, 1, outputs, 1, out));
}

static void runs(const char *model) {
    int code;
    int32_t numbers[] = {3, 4}, result = 0;
    OrtSession *session = session_of(model, &code);
    CHECK_EQ(code, 0);
    OrtValue *in = tensor_of(numbers, 2, &code), *out = tensor_of(&result, 1, &code), *made = NULL;
    CHECK_EQ(sum(session, in, &out), 0);
    CHECK_EQ(result, 7);
    numbers[1] = 40;
    CHECK_EQ(sum(session, in, &out), 0);
    CHECK_EQ(result, 43);
    CHECK_EQ(sum(session, in, &made), 0);
    int32_t *data = NULL, *same = NULL;
    CHECK_EQ(code_of(api->GetTensorMutableData(made, (void **)&data)), 0);
    CHECK_EQ(data ? *data : -1, 43);
    numbers[0] = 1;
    CHECK_EQ(sum(session, in, &made), 0);
    CHECK_EQ(data ? *data : -1, 41);
    CHECK_EQ(code_of(api->GetTensorMutableData(out, (void **)&same)), 0);
    CHECK(same == &result);
    char *name = NULL;
    CHECK_EQ(code_of(api->SessionGetInputName(session, 0, allocator, &name)), 0);
    CHECK(name && !strcmp(name, "in"));
    CHECK_EQ(code_of(api->AllocatorFree(allocator, name)), 0);
    CHECK_EQ(code_of(api->SessionGetOutputName(session, 0, allocator, &name)), 0);
    allocator->Free(allocator, name);
    CHECK_EQ(code_of(api->SessionGetInputName(session, 7, allocator, &name)) != 0, 1);
    api->ReleaseValue(made);
    api->ReleaseValue(out);
    api->ReleaseValue(in);
    api->ReleaseSession(session);
}

static void values(void) {
    const int64_t negative[] = {-3}, large[] = {1ll << 40, 1ll << 40}, two[] = {2};
    int32_t numbers[2] = {0};
    OrtValue *value = NULL;
    CHECK(code_of(api->CreateTensorAsOrtValue(allocator, negative, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value)) != 0);
    CHECK(code_of(api->CreateTensorAsOrtValue(allocator, large, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value)) != 0);
    CHECK(code_of(api->CreateTensorWithDataAsOrtValue(memory, numbers, 4, two, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &value)) != 0);
    CHECK_EQ(code_of(api->CreateTensorAsOrtValue(allocator, two, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, &value)), 0);
    double *data = NULL;
    CHECK_EQ(code_of(api->GetTensorMutableData(value, (void **)&data)), 0);
    if (data)
        data[0] = data[1] = 2.5;
    CHECK_EQ(code_of(api->GetTensorMutableData(value, (void **)&data)), 0);
    CHECK_EQ(data && data[1] == 2.5, 1);
    api->ReleaseValue(value);
}

static void models(const char *path) {
    static char model[1 << 16];
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    FILE *file = fopen(path, "rb");
    size_t size = file ? fread(model, 1, sizeof model, file) : 0;
    CHECK(size > 16);
    if (file)
        fclose(file);
    CHECK_EQ(code_of(api->CreateSessionOptions(&options)), 0);
    for (size_t cut = 1; cut < size; cut += 1 + size / 16)
        CHECK_EQ(code_of(api->CreateSessionFromArray(env, model, cut, options, &session)) != 0, 1);
    unsigned random = 1;
    for (int round = 0; round < 20; round++) {
        char garbage[512];
        for (size_t i = 0; i < sizeof garbage; i++)
            garbage[i] = (char)((random = random * 1664525 + 1013904223) >> 24);
        CHECK_EQ(code_of(api->CreateSessionFromArray(env, garbage, sizeof garbage, options, &session)) != 0, 1);
    }
    CHECK_EQ(code_of(api->CreateSession(env, "/nowhere/model.onnx", options, &session)), ORT_NO_SUCHFILE);
    api->ReleaseSessionOptions(options);
}

static void remoted(const char *model) {
    int code, nobodys = 0;
    int32_t numbers[] = {1, 2};
    OrtValue *in = tensor_of(numbers, 2, &code), *out = NULL;
    OrtSession *session = session_of(model, &code);
    char *name = NULL;
    CHECK_EQ(code_of(api->SessionGetInputName(session, 0, allocator, &name)), 0);
    CHECK(code_of(api->AllocatorFree(allocator, name + 1)) != 0);
    CHECK(code_of(api->AllocatorFree(allocator, &nobodys)) != 0);
    CHECK(code_of(api->AllocatorFree((OrtAllocator *)(void *)&nobodys, name)) != 0);
    CHECK_EQ(code_of(api->AllocatorFree(allocator, name)), 0);
    CHECK(code_of(api->AllocatorFree(allocator, name)) != 0);
    allocator->Free(allocator, name);
    CHECK(sum((OrtSession *)(void *)&nobodys, in, &out) != 0);
    CHECK(sum((OrtSession *)in, in, &out) != 0);
    CHECK(sum(session, (OrtValue *)session, &out) != 0);
    CHECK(code_of(api->RegisterAllocator(env, (OrtAllocator *)(void *)&nobodys)) != 0);
    api->ReleaseSession(session);
    CHECK(sum(session, in, &out) != 0);
    api->ReleaseValue(in);
    api->ReleaseValue(in);
    CHECK(code_of(api->GetTensorMutableData(in, (void **)&name)) != 0);
}

static int timed(const char *model, int count) {
    int code;
    int32_t numbers[] = {1, 2}, result;
    static long long times[100000];
    OrtSession *session = session_of(model, &code);
    OrtValue *in = tensor_of(numbers, 2, &code), *out = tensor_of(&result, 1, &code);
    for (int i = 0; i < count && i < 100000; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (sum(session, in, &out))
            return 3;
        clock_gettime(CLOCK_MONOTONIC, &b);
        long long t = (b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec;
        int at = i;
        for (; at > 0 && times[at - 1] > t; at--)
            times[at] = times[at - 1];
        times[at] = t;
    }
    printf("{\"run_ns\": %lld}\n", times[count / 2]);
    return 0;
}

static int hold(const char *model) {
    int code;
    int32_t numbers[] = {1, 2}, result = 0;
    OrtSession *session = session_of(model, &code);
    OrtValue *in = tensor_of(numbers, 2, &code), *out = tensor_of(&result, 1, &code);
    if (sum(session, in, &out) || result != 3)
        return 1;
    printf("result %d\n", result);
    fflush(stdout);
    getchar();
    result = 0;
    code = sum(session, in, &out);
    printf("result %d, code %d\n", result, code);
    return code ? 3 : result != 3;
}

int main(int argc, char **argv) {
    const OrtApiBase *base = OrtGetApiBase();
    const char *mode = argc > 2 ? argv[2] : "";
    int code;
    if (argc < 2)
        return 2;
    api = base->GetApi(ORT_API_VERSION);
    if (!api || code_of(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "values", &env)) ||
        code_of(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory)) ||
        code_of(api->GetAllocatorWithDefaultOptions(&allocator)))
        return 4;
    if (!strcmp(mode, "hold"))
        return hold(argv[1]);
    if (!strcmp(mode, "time"))
        return timed(argv[1], atoi(argv[3]));
    if (!strcmp(mode, "limited")) {
        const int64_t two[] = {2};
        OrtValue *value = NULL;
        CHECK(code_of(api->CreateTensorAsOrtValue(allocator, two, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, &value)) != 0);
        CHECK(session_of(argv[1], &code) == NULL && code != 0);
        return check_done();
    }
    CHECK(base->GetApi(0) == NULL);
    CHECK(base->GetApi(9999) == NULL);
    runs(argv[1]);
    values();
    models(argv[1]);
    if (!strcmp(mode, "remoted"))
        remoted(argv[1]);
    api->ReleaseMemoryInfo(memory);
    api->ReleaseEnv(env);
    return check_done();
}
