/* Inferences that the application does not wait for: callbacks, waiting with and without a limit, several at a time, one that is
   cancelled. */
#include "common.h"
#include <pthread.h>
#include <time.h>

enum { SIDE = 700, TIMES = 24 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

struct seen {
    pthread_mutex_t lock;
    ov_infer_request_t *request;
    int count, again;
    ov_status_e restarted, got;
};

static void done(void *args) {
    struct seen *seen = args;
    ov_tensor_t *tensor = NULL;
    pthread_mutex_lock(&seen->lock);
    seen->count++;
    seen->got = ov_infer_request_get_output_tensor_by_index(seen->request, 0, &tensor);
    if (seen->got == OK)
        ov_tensor_free(tensor);
    if (seen->count < seen->again)
        seen->restarted = ov_infer_request_start_async(seen->request);
    pthread_mutex_unlock(&seen->lock);
}

static ov_infer_request_t *filled(ov_compiled_model_t *compiled, int side) {
    ov_infer_request_t *request = NULL;
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    for (size_t i = 0; i < 2; i++) {
        ov_tensor_t *tensor = NULL;
        float *data = NULL;
        NEED(ov_infer_request_get_input_tensor_by_index(request, i, &tensor));
        NEED(ov_tensor_data(tensor, (void **)&data));
        for (int k = 0; k < side * side; k++)
            data[k] = k % (side + 1) == 0 ? 1.0f : 0.0f;
        ov_tensor_free(tensor);
    }
    return request;
}

static void say_corner(const char *what, ov_infer_request_t *request) {
    ov_tensor_t *tensor = NULL;
    float *data = NULL;
    NEED(ov_infer_request_get_output_tensor_by_index(request, 1, &tensor));
    NEED(ov_tensor_data(tensor, (void **)&data));
    say_floats(what, data, 4);
    ov_tensor_free(tensor);
}

static void callbacks(ov_compiled_model_t *small) {
    struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
    ov_callback_t callback = {done, &seen};
    seen.request = filled(small, 4);
    TOLD(ov_infer_request_wait(seen.request));
    TOLD(ov_infer_request_wait_for(seen.request, 5));
    TOLD(ov_infer_request_set_callback(seen.request, NULL));
    TOLD(ov_infer_request_set_callback(NULL, &callback));
    TOLD(ov_infer_request_set_callback(seen.request, &callback));
    for (int i = 0; i < 5; i++) {
        NEED(ov_infer_request_start_async(seen.request));
        NEED(ov_infer_request_wait(seen.request));
    }
    say("callbacks: %d, output in it %d", seen.count, seen.got);
    TOLD(ov_infer_request_wait(seen.request));
    TOLD(ov_infer_request_wait_for(seen.request, 0));
    TOLD(ov_infer_request_infer(seen.request));
    TOLD(ov_infer_request_wait(seen.request));
    say("an inference that is waited for calls nobody: %d", seen.count);
    /* A callback that starts the next one. */
    seen.count = 0;
    seen.again = 20;
    NEED(ov_infer_request_start_async(seen.request));
    for (int i = 0; i < 10000; i++) {
        pthread_mutex_lock(&seen.lock);
        int over = seen.count == seen.again;
        pthread_mutex_unlock(&seen.lock);
        if (over)
            break;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    TOLD(ov_infer_request_wait(seen.request));
    say("callbacks: %d, started in it %d", seen.count, seen.restarted);
    say_corner("output", seen.request);
    ov_infer_request_free(seen.request);
}

static void busy(ov_compiled_model_t *slow) {
    ov_infer_request_t *request = filled(slow, SIDE);
    ov_tensor_t *tensor = NULL, *input = NULL;
    ov_profiling_info_list_t list = {NULL, 0};
    NEED(ov_infer_request_get_input_tensor_by_index(request, 0, &input));
    NEED(ov_infer_request_start_async(request));
    double begin = seconds();
    TOLD(ov_infer_request_wait_for(request, 0));
    TOLD(ov_infer_request_wait_for(request, 5));
    say("it came back in time: %d", seconds() - begin < 2);
    say("start: %d", ov_infer_request_start_async(request));
    say("get: %d", ov_infer_request_get_output_tensor_by_index(request, 0, &tensor));
    say("set: %d", ov_infer_request_set_input_tensor_by_index(request, 0, input));
    say("profile: %d", ov_infer_request_get_profiling_info(request, &list));
    TOLD(ov_infer_request_wait_for(request, -1));
    TOLD(ov_infer_request_infer(request));
    say("get: %d", ov_infer_request_get_output_tensor_by_index(request, 0, &tensor));
    ov_tensor_free(tensor);
    TOLD(ov_infer_request_wait(request));
    TOLD(ov_infer_request_wait_for(request, 1000));
    say_corner("output", request);
    ov_tensor_free(input);
    ov_infer_request_free(request);
}

static void several(ov_compiled_model_t *compiled) {
    ov_infer_request_t *requests[6];
    for (int i = 0; i < 6; i++)
        requests[i] = filled(compiled, 4);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 6; i++)
            NEED(ov_infer_request_start_async(requests[i]));
        for (int i = 0; i < 6; i++)
            NEED(ov_infer_request_wait(requests[i]));
    }
    for (int i = 0; i < 6; i++) {
        say_corner("output", requests[i]);
        ov_infer_request_free(requests[i]);
    }
}

static void cancelled(ov_compiled_model_t *slow) {
    ov_infer_request_t *request = filled(slow, SIDE);
    TOLD(ov_infer_request_cancel(request));
    NEED(ov_infer_request_start_async(request));
    nanosleep(&(struct timespec){0, 30000000}, NULL);
    double begin = seconds();
    TOLD(ov_infer_request_cancel(request));
    ov_status_e status = ov_infer_request_wait(request);
    say("cancelled: %d, soon: %d", status, seconds() - begin < 20);
    TOLD(ov_infer_request_infer(request));
    say_corner("output", request);
    /* Freed while it is under way: its callback is not called. */
    struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .request = request};
    ov_callback_t callback = {done, &seen};
    TOLD(ov_infer_request_set_callback(request, &callback));
    NEED(ov_infer_request_start_async(request));
    say("busy: %d", ov_infer_request_set_callback(request, &callback));
    ov_infer_request_free(request);
    say("freed, callbacks: %d", seen.count);
    TOLD(ov_infer_request_start_async(NULL));
    TOLD(ov_infer_request_wait(NULL));
    TOLD(ov_infer_request_cancel(NULL));
}

/* The application's memory has the output when the wait is over. */
static void host_memory(ov_compiled_model_t *compiled) {
    ov_infer_request_t *request = filled(compiled, 4);
    ov_tensor_t *tensor = NULL;
    float out[16] = {0};
    int64_t dims[2] = {4, 4};
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, out, &tensor));
    NEED(ov_infer_request_set_output_tensor_by_index(request, 1, tensor));
    NEED(ov_infer_request_start_async(request));
    NEED(ov_infer_request_wait(request));
    say_floats("out", out, 16);
    ov_tensor_free(tensor);
    ov_infer_request_free(request);
}

/* With two streams inferences run side by side, and one that is waited for is as busy as one that is not. */
static void streams(ov_core_t *core) {
    static char text[65536];
    ov_compiled_model_t *compiled = NULL;
    ov_model_t *model = read_text(core, text, product_model(text, sizeof text, 4, 2), 0);
    NEED(ov_core_compile_model(core, model, "CPU", 4, &compiled, "NUM_STREAMS", "2", "INFERENCE_NUM_THREADS", "2"));
    ov_model_free(model);
    several(compiled);
    callbacks(compiled);
    host_memory(compiled);
    ov_compiled_model_free(compiled);
}

int main(void) {
    ov_core_t *core = NULL;
    NEED(ov_core_create(&core));
    streams(core);
    ov_compiled_model_t *small = compile_product(core, 4, 2), *slow = compile_product(core, SIDE, TIMES);
    callbacks(small);
    several(small);
    host_memory(small);
    busy(slow);
    cancelled(slow);
    ov_compiled_model_free(small);
    ov_compiled_model_free(slow);
    ov_core_free(core);
    return 0;
}
