/* What goes wrong, and how fast what goes right is:
     wrong            NULL where objects are asked for; compared with the native lines
     wrong remoted    stale and foreign handles, what is not virtualized; only through Aviary
     wrong limited    a byte of memory for tensors and models
     wrong hold       a request that waits for a line, and inferences after it
     wrong runs N     N inferences of a small model
     wrong write      add.xml and add.bin: a model for other programs */
#include "common.h"
#include <time.h>

static int failures;

static void expect(const char *what, int is, int wanted) {
    say("%s %s: %d", is == wanted ? "ok  " : "FAIL", what, is);
    failures += is != wanted;
}
#define EXPECT(call, wanted) expect(#call, call, wanted)

static int nulls(void) {
    ov_core_t *core = NULL;
    size_t size = 0;
    char *text = NULL;
    ov_model_t *model = NULL;
    NEED(ov_core_create(&core));
    ov_compiled_model_t *compiled = compile_add(core, "2,3");
    TOLD(ov_core_read_model(NULL, "x", NULL, &model));
    TOLD(ov_core_read_model_from_memory_buffer(NULL, "x", 1, NULL, &model));
    TOLD(ov_core_compile_model(NULL, NULL, "CPU", 0, &compiled));
    TOLD(ov_core_compile_model(core, NULL, "CPU", 0, &compiled));
    TOLD(ov_core_compile_model_from_file(NULL, "x", "CPU", 0, &compiled));
    TOLD(ov_core_set_property(NULL, "CPU", "NUM_STREAMS", "1"));
    TOLD(ov_core_get_property(NULL, "CPU", "NUM_STREAMS", &text));
    TOLD(ov_core_get_available_devices(NULL, NULL));
    TOLD(ov_core_import_model(core, NULL, 0, "CPU", &compiled));
    TOLD(ov_model_inputs_size(NULL, &size));
    TOLD(ov_model_get_friendly_name(NULL, &text));
    TOLD(ov_model_const_input(NULL, NULL));
    TOLD(ov_compiled_model_inputs_size(NULL, &size));
    TOLD(ov_compiled_model_inputs_size(compiled, NULL));
    TOLD(ov_compiled_model_create_infer_request(NULL, NULL));
    TOLD(ov_compiled_model_create_infer_request(compiled, NULL));
    TOLD(ov_compiled_model_export_model(NULL, "x"));
    TOLD(ov_infer_request_infer(NULL));
    TOLD(ov_infer_request_set_input_tensor(NULL, NULL));
    TOLD(ov_infer_request_get_input_tensor(NULL, NULL));
    TOLD(ov_tensor_get_size(NULL, &size));
    TOLD(ov_tensor_data(NULL, NULL));
    TOLD(ov_tensor_set_shape(NULL, (ov_shape_t){0, NULL}));
    TOLD(ov_port_get_any_name(NULL, &text));
    TOLD(ov_remote_context_get_device_name(NULL, &text));
    TOLD(ov_preprocess_input_info_get_tensor_info(NULL, NULL));
    TOLD(ov_preprocess_preprocess_steps_scale(NULL, 1));
    ov_infer_request_free(NULL);
    ov_compiled_model_free(NULL);
    ov_output_port_free(NULL);
    ov_output_const_port_free(NULL);
    ov_available_devices_free(NULL);
    ov_core_versions_free(NULL);
    ov_version_free(NULL);
    ov_profiling_info_list_free(NULL);
    ov_remote_context_free(NULL);
    ov_free(NULL);
    ov_compiled_model_free(compiled);
    ov_core_free(core);
    return 0;
}

static void never(void *args) {
    (void)args;
}

static void stale(ov_core_t *core) {
    ov_compiled_model_t *compiled = compile_add(core, "2,3");
    ov_infer_request_t *request = NULL;
    ov_tensor_t *tensor = NULL, *foreign = (ov_tensor_t *)(uintptr_t)0x123456789abcull;
    ov_callback_t callback = {never, NULL};
    size_t size = 0;
    void *data = NULL;
    int64_t dims[2] = {2, 3};
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_tensor_create(F32, (ov_shape_t){2, dims}, &tensor));
    EXPECT(ov_infer_request_set_input_tensor(request, foreign), INVALID_C_PARAM);
    EXPECT(ov_infer_request_set_input_tensor(request, (ov_tensor_t *)request), INVALID_C_PARAM);
    EXPECT(ov_tensor_get_size(foreign, &size), INVALID_C_PARAM);
    EXPECT(ov_tensor_data((ov_tensor_t *)compiled, &data), INVALID_C_PARAM);
    EXPECT(ov_infer_request_infer((ov_infer_request_t *)tensor), INVALID_C_PARAM);
    EXPECT(ov_infer_request_start_async((ov_infer_request_t *)tensor), INVALID_C_PARAM);
    EXPECT(ov_infer_request_set_callback((ov_infer_request_t *)foreign, &callback), INVALID_C_PARAM);
    ov_tensor_free(foreign);
    ov_tensor_free((ov_tensor_t *)request);
    ov_tensor_free(tensor);
    EXPECT(ov_tensor_get_size(tensor, &size), INVALID_C_PARAM);
    EXPECT(ov_tensor_data(tensor, &data), INVALID_C_PARAM);
    ov_tensor_free(tensor);
    ov_infer_request_free(request);
    EXPECT(ov_infer_request_infer(request), INVALID_C_PARAM);
    EXPECT(ov_infer_request_start_async(request), INVALID_C_PARAM);
    EXPECT(ov_infer_request_wait(request), INVALID_C_PARAM);
    EXPECT(ov_infer_request_cancel(request), INVALID_C_PARAM);
    EXPECT(ov_infer_request_set_callback(request, &callback), INVALID_C_PARAM);
    EXPECT(ov_infer_request_get_input_tensor(request, &tensor), INVALID_C_PARAM);
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
    EXPECT(ov_compiled_model_inputs_size(compiled, &size), INVALID_C_PARAM);
    EXPECT(ov_compiled_model_create_infer_request(compiled, &request), INVALID_C_PARAM);
    EXPECT(ov_compiled_model_export_model(compiled, "stale.blob"), INVALID_C_PARAM);
}

/* Parts of a preprocessor that has ended. */
static void parts(ov_core_t *core) {
    char text[8192];
    ov_model_t *model = read_text(core, text, add_model(text, sizeof text, "2,3"), 1);
    ov_preprocess_prepostprocessor_t *all = NULL;
    ov_preprocess_input_info_t *input = NULL;
    ov_preprocess_preprocess_steps_t *steps = NULL;
    NEED(ov_preprocess_prepostprocessor_create(model, &all));
    NEED(ov_preprocess_prepostprocessor_get_input_info(all, &input));
    NEED(ov_preprocess_input_info_get_preprocess_steps(input, &steps));
    ov_preprocess_input_info_free(input);
    EXPECT(ov_preprocess_preprocess_steps_scale(steps, 2), OK);
    ov_preprocess_prepostprocessor_free(all);
    EXPECT(ov_preprocess_preprocess_steps_scale(steps, 2), INVALID_C_PARAM);
    ov_preprocess_preprocess_steps_free(steps);
    ov_model_free(model);
}

static void encrypt(const char *in, const size_t bytes, char *out, size_t *out_bytes) {
    (void)in, (void)bytes, (void)out, (void)out_bytes;
}

static void refused(ov_core_t *core) {
    char text[8192];
    ov_model_t *model = read_text(core, text, add_model(text, sizeof text, "2,3"), 1);
    ov_compiled_model_t *compiled = NULL;
    ov_core_t *other = NULL;
    ov_remote_context_t *context = NULL;
    ov_encryption_callbacks callbacks = {encrypt, encrypt};
    const ov_property_t pairs[2] = {{"NUM_STREAMS", "1"}, {ov_property_key_cache_encryption_callbacks, &callbacks}};
    ov_tensor_t *tensor = NULL;
    const char *word = "word";
    int64_t one[1] = {1};
    void *data = NULL;
    EXPECT(ov_core_create_with_config("plugins.xml", &other), NOT_IMPLEMENTED);
    EXPECT(ov_core_create_with_config_unicode(L"plugins.xml", &other), NOT_IMPLEMENTED);
    EXPECT(ov_core_add_extension(core, "libextension.so"), NOT_IMPLEMENTED);
    EXPECT(ov_core_set_property(core, "CPU", ov_property_key_cache_dir, "/tmp/cache"), NOT_IMPLEMENTED);
    EXPECT(ov_core_set_property(core, "CPU", "DEVICE_PROPERTIES", "{CPU:{CACHE_DIR:/tmp/cache}}"), NOT_IMPLEMENTED);
    EXPECT(ov_core_compile_model_props(core, model, "CPU", 2, pairs, &compiled), NOT_IMPLEMENTED);
    EXPECT(ov_core_compile_model(core, model, "CPU", 2, &compiled, ov_property_key_cache_encryption_callbacks, &callbacks), NOT_IMPLEMENTED);
    EXPECT(ov_core_create_context(core, "GPU", 4, &context, "CONTEXT_TYPE", "OCL", "OCL_CONTEXT", core), NOT_IMPLEMENTED);
    EXPECT(ov_core_set_property(core, "CPU", NULL, NULL), NOT_IMPLEMENTED);
    NEED(ov_tensor_create_from_string_array(&word, 1, (ov_shape_t){1, one}, &tensor));
    EXPECT(ov_tensor_data(tensor, &data), NOT_IMPLEMENTED);
    ov_tensor_free(tensor);
    EXPECT(ov_core_compile_model(core, model, "CPU", 0, &compiled), OK);
    ov_compiled_model_free(compiled);
    ov_model_free(model);
}

static int remoted(void) {
    ov_core_t *core = NULL;
    NEED(ov_core_create(&core));
    stale(core);
    parts(core);
    refused(core);
    ov_core_free(core);
    EXPECT(ov_core_set_property(core, "CPU", "NUM_STREAMS", "1"), INVALID_C_PARAM);
    return failures != 0;
}

static int limited(void) {
    ov_core_t *core = NULL;
    ov_model_t *model = NULL;
    ov_tensor_t *tensor = NULL;
    char text[8192];
    static float memory[1000];
    int64_t dims[1] = {1000};
    size_t bytes = add_model(text, sizeof text, "2,3");
    NEED(ov_core_create(&core));
    EXPECT(ov_tensor_create(F32, (ov_shape_t){1, dims}, &tensor), GENERAL_ERROR);
    EXPECT(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){1, dims}, memory, &tensor), GENERAL_ERROR);
    EXPECT(ov_core_read_model_from_memory_buffer(core, text, bytes, NULL, &model), GENERAL_ERROR);
    write_file("limited.xml", text, bytes);
    write_file("limited.bin", weights, sizeof weights);
    EXPECT(ov_core_read_model(core, "limited.xml", NULL, &model), GENERAL_ERROR);
    ov_core_free(core);
    return failures != 0;
}

static int called;

static void count(void *args) {
    ++*(int *)args;
}

static int hold(void) {
    ov_core_t *core = NULL;
    ov_infer_request_t *request = NULL;
    ov_callback_t callback = {count, &called};
    char line[16];
    NEED(ov_core_create(&core));
    ov_compiled_model_t *compiled = compile_product(core, 800, 60);
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_infer_request_set_callback(request, &callback));
    NEED(ov_infer_request_start_async(request));
    NEED(ov_infer_request_wait(request));
    NEED(ov_infer_request_start_async(request));
    say("ready");
    if (!fgets(line, sizeof line, stdin))
        return 5;
    ov_status_e waited = ov_infer_request_wait(request), made = ov_infer_request_infer(request);
    ov_status_e started = ov_infer_request_start_async(request), again = ov_infer_request_wait(request);
    say("wait %d, infer %d, start %d, wait %d, callbacks %d, %s", waited, made, started, again, called, ov_get_error_info(made));
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
    ov_core_free(core);
    return made == OK ? 0 : 3;
}

static int runs(int n) {
    ov_core_t *core = NULL;
    ov_infer_request_t *request = NULL;
    ov_tensor_t *tensor = NULL;
    float *in = NULL, *out = NULL, sum = 0;
    struct timespec from, to;
    NEED(ov_core_create(&core));
    ov_compiled_model_t *compiled = compile_product(core, 128, 2);
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    for (size_t i = 0; i < 2; i++) {
        NEED(ov_infer_request_get_input_tensor_by_index(request, i, &tensor));
        NEED(ov_tensor_data(tensor, (void **)&in));
        for (int k = 0; k < 128 * 128; k++)
            in[k] = k % 129 == 0 ? 1.0f : 0.0f;
        ov_tensor_free(tensor);
    }
    NEED(ov_infer_request_infer(request));
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < n; i++) {
        in[0] = (float)(i % 7);
        NEED(ov_infer_request_infer(request));
        NEED(ov_infer_request_get_output_tensor_by_index(request, 0, &tensor));
        NEED(ov_tensor_data(tensor, (void **)&out));
        sum += out[0];
        ov_tensor_free(tensor);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    say("sum %g", (double)sum);
    fprintf(stderr, "us %.1f\n", ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / 1e3 / n);
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
    ov_core_free(core);
    return 0;
}

static int write_model(void) {
    char text[8192];
    write_file("add.xml", text, add_model(text, sizeof text, "2,3"));
    write_file("add.bin", weights, sizeof weights);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "remoted"))
        return remoted();
    if (!strcmp(what, "limited"))
        return limited();
    if (!strcmp(what, "hold"))
        return hold();
    if (!strcmp(what, "runs"))
        return runs(argc > 2 ? atoi(argv[2]) : 100);
    if (!strcmp(what, "write"))
        return write_model();
    return nulls();
}
