/* Eight threads with requests of their own, half of whose inferences are asynchronous: each output is its thread's. */
#include "common.h"
#include <pthread.h>

static ov_compiled_model_t *compiled;

static void once(ov_infer_request_t *request, int first, int asynchronous) {
    int64_t dims[2] = {2, 3};
    ov_tensor_t *tensor = NULL;
    float *data = NULL;
    NEED(ov_tensor_create(F32, (ov_shape_t){2, dims}, &tensor));
    NEED(ov_tensor_data(tensor, (void **)&data));
    for (int i = 0; i < 6; i++)
        data[i] = (float)(first + i);
    NEED(ov_infer_request_set_input_tensor(request, tensor));
    ov_tensor_free(tensor);
    if (asynchronous) {
        NEED(ov_infer_request_start_async(request));
        NEED(ov_infer_request_wait(request));
    } else
        NEED(ov_infer_request_infer(request));
    NEED(ov_infer_request_get_output_tensor(request, &tensor));
    NEED(ov_tensor_data(tensor, (void **)&data));
    for (int i = 0; i < 6; i++)
        if (data[i] != (float)(first + i) + weights[i]) {
            say("of %d: %g at %d", first, (double)data[i], i);
            exit(1);
        }
    ov_tensor_free(tensor);
}

static void *run(void *argument) {
    int number = *(int *)argument;
    for (int round = 0; round < 20; round++) {
        ov_infer_request_t *request = NULL;
        NEED(ov_compiled_model_create_infer_request(compiled, &request));
        for (int i = 0; i < 20; i++)
            once(request, number * 1000 + i * 10, i & 1);
        ov_infer_request_free(request);
    }
    return NULL;
}

int main(void) {
    ov_core_t *core = NULL;
    pthread_t threads[8];
    int numbers[8];
    NEED(ov_core_create(&core));
    compiled = compile_add(core, "2,3");
    for (int i = 0; i < 8; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, run, &numbers[i]))
            exit(5);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    say("%d inferences", 8 * 20 * 20);
    ov_compiled_model_free(compiled);
    ov_core_free(core);
    return 0;
}
