/* Inferences that the application waits for: tensors set and asked for in every way, memory of both sides, dynamic shapes. */
#include "common.h"

static void say_output(const char *what, ov_tensor_t *tensor) {
    float *data = NULL;
    size_t elements = 0;
    NEED(ov_tensor_data(tensor, (void **)&data));
    NEED(ov_tensor_get_size(tensor, &elements));
    say_floats(what, data, (int)elements);
}

/* The library's own tensors: what is written into the input's memory, and what is there after each inference. */
static void own_tensors(ov_compiled_model_t *compiled) {
    ov_infer_request_t *request = NULL;
    ov_tensor_t *input = NULL, *output = NULL, *again = NULL;
    float *in = NULL, *out = NULL, *same = NULL;
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_infer_request_get_input_tensor(request, &input));
    NEED(ov_infer_request_get_output_tensor(request, &output));
    NEED(ov_tensor_data(input, (void **)&in));
    NEED(ov_tensor_data(output, (void **)&out));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 6; i++)
            in[i] = (float)(round * 100 + i);
        TOLD(ov_infer_request_infer(request));
        say_floats("output", out, 6);
    }
    /* Another object for the same tensor; the first one is freed. */
    NEED(ov_infer_request_get_input_tensor_by_index(request, 0, &again));
    NEED(ov_tensor_data(again, (void **)&same));
    say("the same memory: %d", same == in);
    ov_tensor_free(input);
    same[0] = -1000;
    ov_tensor_free(again);
    TOLD(ov_infer_request_infer(request));
    say_floats("output", out, 6);
    ov_tensor_free(output);
    ov_infer_request_free(request);
}

/* A tensor that is filled, set and freed before the inference. */
static void freed_before(ov_compiled_model_t *compiled) {
    ov_infer_request_t *request = NULL;
    int64_t dims[2] = {2, 3};
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    for (int round = 0; round < 3; round++) {
        ov_tensor_t *tensor = NULL;
        float *data = NULL;
        NEED(ov_tensor_create(F32, (ov_shape_t){2, dims}, &tensor));
        NEED(ov_tensor_data(tensor, (void **)&data));
        for (int i = 0; i < 6; i++)
            data[i] = (float)(round + i);
        NEED(ov_infer_request_set_input_tensor(request, tensor));
        ov_tensor_free(tensor);
        NEED(ov_infer_request_infer(request));
        NEED(ov_infer_request_get_output_tensor(request, &tensor));
        say_output("output", tensor);
        ov_tensor_free(tensor);
    }
    ov_infer_request_free(request);
}

/* Memory of the application's, as input and as output. */
static void host_memory(ov_compiled_model_t *compiled) {
    ov_infer_request_t *request = NULL;
    int64_t dims[2] = {2, 3}, wrong[2] = {3, 2};
    float in[6] = {1, 2, 3, 4, 5, 6}, out[8] = {0, 0, 0, 0, 0, 0, 77, 88};
    float *heap = malloc(sizeof in);
    ov_tensor_t *input = NULL, *output = NULL, *bad = NULL, *other = NULL, *got = NULL;
    void *data = NULL;
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, in, &input));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, out, &output));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, heap, &other));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, wrong}, in, &bad));
    TOLD(ov_infer_request_set_tensor(request, "x", input));
    TOLD(ov_infer_request_set_tensor(request, "y", output));
    for (int round = 0; round < 2; round++) {
        in[0] = (float)round;
        TOLD(ov_infer_request_infer(request));
        say_floats("out", out, 8);
    }
    memcpy(heap, in, sizeof in);
    heap[5] = 500;
    TOLD(ov_infer_request_set_input_tensor_by_index(request, 0, other));
    in[1] = -5000;
    TOLD(ov_infer_request_infer(request));
    say_floats("out", out, 8);
    NEED(ov_infer_request_get_tensor(request, "x", &got));
    NEED(ov_tensor_data(got, &data));
    say("the application's memory: %d", data == heap);
    ov_tensor_free(got);
    TOLD(ov_infer_request_set_input_tensor(request, bad));
    TOLD(ov_infer_request_set_output_tensor(request, bad));
    TOLD(ov_infer_request_set_input_tensor_by_index(request, 5, input));
    TOLD(ov_infer_request_set_output_tensor_by_index(request, 5, input));
    TOLD(ov_infer_request_set_input_tensor(request, NULL));
    TOLD(ov_infer_request_infer(request));
    say_floats("out", out, 8);
    ov_infer_request_free(request);
    ov_tensor_free(input);
    ov_tensor_free(output);
    ov_tensor_free(other);
    ov_tensor_free(bad);
    free(heap);
}

/* By ports of the model and of the compiled model, with two inputs and two outputs. */
static void by_ports(ov_core_t *core) {
    static char text[65536];
    ov_model_t *model = read_text(core, text, product_model(text, sizeof text, 2, 3), 0);
    ov_compiled_model_t *compiled = NULL;
    ov_infer_request_t *request = NULL;
    ov_output_port_t *port = NULL;
    ov_output_const_port_t *const_port = NULL;
    ov_tensor_t *a = NULL, *b = NULL, *q = NULL, *got = NULL;
    int64_t dims[2] = {2, 2};
    float a_data[4] = {1, 2, 3, 4}, b_data[4] = {0, 1, 2, 0}, q_data[4] = {0};
    NEED(ov_core_compile_model(core, model, "CPU", 0, &compiled));
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, a_data, &a));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, b_data, &b));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, q_data, &q));
    NEED(ov_model_input_by_name(model, "a", &port));
    TOLD(ov_infer_request_set_tensor_by_port(request, port, a));
    NEED(ov_compiled_model_input_by_index(compiled, 1, &const_port));
    TOLD(ov_infer_request_set_tensor_by_const_port(request, const_port, b));
    TOLD(ov_infer_request_set_output_tensor_by_index(request, 1, q));
    TOLD(ov_infer_request_infer(request));
    say_floats("q", q_data, 4);
    NEED(ov_infer_request_get_tensor_by_port(request, port, &got));
    say_output("a", got);
    ov_tensor_free(got);
    NEED(ov_infer_request_get_tensor_by_const_port(request, const_port, &got));
    say_output("b", got);
    ov_tensor_free(got);
    NEED(ov_infer_request_get_output_tensor_by_index(request, 0, &got));
    say_output("p", got);
    ov_tensor_free(got);
    NEED(ov_infer_request_get_output_tensor_by_index(request, 1, &got));
    say_output("q", got);
    ov_tensor_free(got);
    TOLD(ov_infer_request_get_input_tensor(request, &got));
    TOLD(ov_infer_request_get_output_tensor(request, &got));
    TOLD(ov_infer_request_get_output_tensor_by_index(request, 2, &got));
    TOLD(ov_infer_request_get_tensor_by_port(request, NULL, &got));
    ov_output_port_free(port);
    ov_output_const_port_free(const_port);
    ov_infer_request_free(request);
    ov_tensor_free(a);
    ov_tensor_free(b);
    ov_tensor_free(q);
    ov_compiled_model_free(compiled);
    ov_model_free(model);
}

/* Any number of rows: the output's shape and memory change with each inference. */
static void dynamic(ov_core_t *core) {
    ov_compiled_model_t *compiled = compile_add(core, "-1,3");
    ov_infer_request_t *request = NULL;
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    for (int rows = 1; rows < 200; rows = rows * 3 + 1) {
        int64_t dims[2] = {rows, 3};
        float *data = NULL;
        ov_tensor_t *input = NULL, *output = NULL, *named = NULL;
        ov_shape_t shape = {0, NULL};
        NEED(ov_tensor_create(F32, (ov_shape_t){2, dims}, &input));
        NEED(ov_tensor_data(input, (void **)&data));
        for (int i = 0; i < 3 * rows; i++)
            data[i] = (float)(rows + i);
        NEED(ov_infer_request_set_input_tensor(request, input));
        TOLD(ov_infer_request_infer(request));
        NEED(ov_infer_request_get_output_tensor(request, &output));
        NEED(ov_tensor_get_shape(output, &shape));
        say_shape("output", &shape);
        say_output("output", output);
        NEED(ov_infer_request_get_tensor(request, "sum", &named));
        say_output("by its other name", named);
        ov_tensor_free(named);
        ov_tensor_free(output);
        ov_tensor_free(input);
    }
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
}

/* The request's own input grows with each inference. */
static void growing(ov_core_t *core) {
    ov_compiled_model_t *compiled = compile_add(core, "-1,3");
    ov_infer_request_t *request = NULL;
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    for (int rows = 1; rows < 50; rows = rows * 3 + 1) {
        int64_t dims[2] = {rows, 3};
        float *data = NULL;
        ov_tensor_t *tensor = NULL;
        NEED(ov_infer_request_get_input_tensor(request, &tensor));
        TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){2, dims}));
        NEED(ov_tensor_data(tensor, (void **)&data));
        for (int i = 0; i < 3 * rows; i++)
            data[i] = (float)(rows - i);
        ov_tensor_free(tensor);
        TOLD(ov_infer_request_infer(request));
        NEED(ov_infer_request_get_output_tensor(request, &tensor));
        say_output("output", tensor);
        ov_tensor_free(tensor);
    }
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
}

static void profile(ov_core_t *core) {
    char text[8192];
    ov_model_t *model = read_text(core, text, add_model(text, sizeof text, "2,3"), 1);
    ov_compiled_model_t *compiled = NULL;
    ov_infer_request_t *request = NULL;
    ov_profiling_info_list_t list = {NULL, 0};
    NEED(ov_core_compile_model(core, model, "CPU", 4, &compiled, ov_property_key_enable_profiling, "YES", ov_property_key_num_streams, "1"));
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_infer_request_infer(request));
    TOLD(ov_infer_request_get_profiling_info(request, &list));
    for (size_t i = 0; i < list.size; i++)
        say("%s %s %s %d", list.profiling_infos[i].node_name, list.profiling_infos[i].exec_type, list.profiling_infos[i].node_type,
            list.profiling_infos[i].status);
    ov_profiling_info_list_free(&list);
    say("freed: %d %zu", list.profiling_infos == NULL, list.size);
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
    ov_model_free(model);
}

/* Inferences of requests whose model has been freed. */
static void outlives(ov_core_t *core) {
    ov_compiled_model_t *compiled = compile_add(core, "2,3");
    ov_infer_request_t *requests[3];
    for (int i = 0; i < 3; i++)
        NEED(ov_compiled_model_create_infer_request(compiled, &requests[i]));
    ov_compiled_model_free(compiled);
    for (int i = 0; i < 3; i++) {
        ov_tensor_t *input = NULL, *output = NULL;
        float *data = NULL;
        NEED(ov_infer_request_get_input_tensor(requests[i], &input));
        NEED(ov_tensor_data(input, (void **)&data));
        for (int k = 0; k < 6; k++)
            data[k] = (float)(1000 * i);
        ov_tensor_free(input);
        NEED(ov_infer_request_infer(requests[i]));
        NEED(ov_infer_request_get_output_tensor(requests[i], &output));
        say_output("output", output);
        ov_infer_request_free(requests[i]);
        say_output("of a request that is gone", output);
        ov_tensor_free(output);
    }
}

int main(void) {
    ov_core_t *core = NULL;
    NEED(ov_core_create(&core));
    ov_compiled_model_t *compiled = compile_add(core, "2,3");
    own_tensors(compiled);
    freed_before(compiled);
    host_memory(compiled);
    ov_compiled_model_free(compiled);
    by_ports(core);
    dynamic(core);
    growing(core);
    profile(core);
    outlives(core);
    ov_core_free(core);
    return 0;
}
