/* Runs that the application does not wait for: each in a thread of the guest, which calls Run and then the application. */
#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>

#include "external.h"
#include "onnxruntime_types.h"

/* All that the arguments point to stays the application's, as natively, until its function is called. */
struct run {
    const OrtApi *api;
    OrtSession *session;
    const OrtRunOptions *options;
    const char *const *input_names, *const *output_names;
    const OrtValue *const *inputs;
    OrtValue **outputs;
    size_t input_count, output_count;
    RunAsyncCallbackFn done;
    void *data;
};

static void *run(void *argument) {
    struct run of = *(struct run *)argument;
    free(argument);
    OrtStatus *status = of.api->Run(of.session, of.options, of.input_names, of.inputs, of.input_count, of.output_names, of.output_count,
                                    of.outputs);
    of.done(of.data, of.outputs, status ? 0 : of.output_count, status);
    return NULL;
}

OrtStatus *run_later(OrtSession *session, const OrtRunOptions *options, const char *const *input_names, const OrtValue *const *inputs,
                     size_t input_count, const char *const *output_names, size_t output_count, OrtValue **outputs,
                     RunAsyncCallbackFn done, void *data) {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    pthread_attr_t detached;
    pthread_t thread;
    if (!api)
        return made_status(1);
    if (!done)
        return api->CreateStatus(ORT_INVALID_ARGUMENT, "no function to be called when the run is over");
    struct run *of = malloc(sizeof *of);
    if (!of)
        return api->CreateStatus(ORT_FAIL, "no memory for a run");
    *of = (struct run){api, session, options, input_names, output_names, inputs, outputs, input_count, output_count, done, data};
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &detached, run, of);
    pthread_attr_destroy(&detached);
    if (!failed)
        return NULL;
    free(of);
    return api->CreateStatus(ORT_FAIL, "no thread for a run");
}
