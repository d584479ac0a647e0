/* What the test programs that run models share: statuses and sums as lines that are equal natively and remotely. */
#ifndef MODELS_H
#define MODELS_H

#include <stdlib.h>

#include "check.h"
#include "onnxruntime_c_api.h"

static const OrtApi *api;
static OrtEnv *env;

/* Prints the code of a status, which is released, and whether its text names the file. */
static int told(const char *what, OrtStatus *status, const char *file) {
    int code = status ? (int)api->GetErrorCode(status) : 0;
    printf("%s: %d%s\n", what, code, status && file && strstr(api->GetErrorMessage(status), file) ? ", names the file" : "");
    if (status)
        api->ReleaseStatus(status);
    return code;
}

/* Runs a session with `count` zeros, which is told as `run`, and prints the sum of what comes out as `what`. */
static inline void run_session(const char *run, const char *what, OrtSession *session, int64_t count) {
    const char *const inputs[] = {"in"}, *const outputs[] = {"out"};
    float *numbers = calloc((size_t)count, sizeof *numbers), *results = NULL;
    OrtMemoryInfo *memory = NULL;
    OrtValue *in = NULL, *out = NULL;
    told("memory", api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory), NULL);
    told("input", api->CreateTensorWithDataAsOrtValue(memory, numbers, (size_t)count * sizeof *numbers, &count, 1,
                                                      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &in), NULL);
    const OrtValue *const values[] = {in};
    if (told(run, api->Run(session, NULL, inputs, values, 1, outputs, 1, &out), NULL) == 0) {
        double sum = 0;
        told("output", api->GetTensorMutableData(out, (void **)&results), NULL);
        for (int64_t n = 0; n < count; n++)
            sum += (double)results[n] * (double)(n % 7);
        printf("%s: %.3f\n", what, sum);
    }
    api->ReleaseValue(out);
    api->ReleaseValue(in);
    api->ReleaseMemoryInfo(memory);
    free(numbers);
}

#endif
