/* The core: versions, devices, properties, errors and messages. */
#include "common.h"

static void versions(ov_core_t *core) {
    ov_version_t version;
    ov_core_version_list_t list = {NULL, 0};
    ov_available_devices_t devices = {NULL, 0};
    NEED(ov_get_openvino_version(&version));
    say("%s, %s", version.description, version.buildNumber);
    ov_version_free(&version);
    say("freed: %d %d", version.buildNumber == NULL, version.description == NULL);
    NEED(ov_core_get_versions_by_device_name(core, "CPU", &list));
    for (size_t i = 0; i < list.size; i++)
        say("%s: %s, %s", list.versions[i].device_name, list.versions[i].version.description, list.versions[i].version.buildNumber);
    ov_core_versions_free(&list);
    TOLD(ov_core_get_versions_by_device_name(core, "NONE", &list));
    TOLD(ov_core_get_versions_by_device_name(core, "HETERO:CPU", &list));
    for (size_t i = 0; i < list.size; i++)
        say("%s", list.versions[i].device_name);
    ov_core_versions_free(&list);
    NEED(ov_core_get_available_devices(core, &devices));
    for (size_t i = 0; i < devices.size; i++)
        say("device %s", devices.devices[i]);
    ov_available_devices_free(&devices);
    say("freed: %d %zu", devices.devices == NULL, devices.size);
}

static void property(ov_core_t *core, const char *key) {
    char *value = NULL;
    ov_status_e status = ov_core_get_property(core, "CPU", key, &value);
    say("%s: %d %s", key, status, status == OK ? value : "-");
    ov_free(value);
}

static void properties(ov_core_t *core) {
    const ov_property_t some[] = {{ov_property_key_hint_performance_mode, "LATENCY"}, {ov_property_key_num_streams, "1"}};
    property(core, ov_property_key_supported_properties);
    property(core, ov_property_key_available_devices);
    property(core, ov_property_key_range_for_streams);
    property(core, ov_property_key_device_capabilities);
    TOLD(ov_core_set_property(core, "CPU", ov_property_key_inference_num_threads, "2"));
    property(core, ov_property_key_inference_num_threads);
    TOLD(ov_core_set_property(core, "CPU", ov_property_key_hint_enable_cpu_pinning, "NO"));
    TOLD(ov_core_set_properties(core, "CPU", 2, some));
    property(core, ov_property_key_hint_performance_mode);
    property(core, ov_property_key_num_streams);
    TOLD(ov_core_set_properties(core, "CPU", 0, NULL));
    TOLD(ov_core_set_property(core, NULL, ov_property_key_enable_mmap, "YES"));
    property(core, "NO_SUCH_PROPERTY");
    TOLD(ov_core_set_property(core, "NONE", ov_property_key_num_streams, "1"));
}

static void compiled_properties(ov_core_t *core) {
    ov_compiled_model_t *compiled = compile_add(core, "2,3");
    char *value = NULL;
    static const char *const keys[] = {"NETWORK_NAME", "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "SUPPORTED_PROPERTIES", "NO_SUCH_PROPERTY"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        ov_status_e status = ov_compiled_model_get_property(compiled, keys[i], &value);
        say("%s: %d %s", keys[i], status, status == OK ? value : "-");
        if (status == OK)
            ov_free(value);
    }
    const ov_property_t one = {ov_property_key_num_streams, "1"};
    TOLD(ov_compiled_model_set_property(compiled, ov_property_key_num_streams, "1"));
    TOLD(ov_compiled_model_set_properties(compiled, 1, &one));
    ov_compiled_model_free(compiled);
}

static void errors(ov_core_t *core) {
    ov_core_t *other = NULL;
    ov_compiled_model_t *compiled = NULL;
    ov_remote_context_t *context = NULL;
    for (int status = 1; status > -19; status--)
        say("%d: %s", status, ov_get_error_info((ov_status_e)status));
    TOLD(ov_core_create(NULL));
    TOLD(ov_core_create_with_config(NULL, &other));
    TOLD(ov_core_create_with_config("", &other));
    ov_core_free(other);
    TOLD(ov_core_create_with_config_unicode(L"", &other));
    ov_core_free(other);
    ov_core_free(NULL);
    TOLD(ov_core_get_property(core, "CPU", NULL, NULL));
    TOLD(ov_core_import_model(core, "no model", 8, "CPU", &compiled));
    TOLD(ov_core_create_context(core, "CPU", 0, &context));
    TOLD(ov_core_create_context(core, "CPU", 2, &context, "CONTEXT_TYPE", "OCL"));
    TOLD(ov_core_create_context(core, "CPU", 1, &context, "CONTEXT_TYPE"));
    TOLD(ov_core_create_context_props(core, "CPU", 0, NULL, &context));
    TOLD(ov_core_get_default_context(core, "CPU", &context));
    TOLD(ov_core_get_default_context(core, "GPU", &context));
    compiled = compile_add(core, "2,3");
    TOLD(ov_compiled_model_get_context(compiled, &context));
    ov_compiled_model_free(compiled);
    ov_util_set_log_callback(NULL);
    ov_util_reset_log_callback();
}

static int messages;

static void count(const char *message) {
    __atomic_add_fetch(&messages, message != NULL, __ATOMIC_RELAXED);
}

/* Devices that stand for others; the first one logs what it does. */
static void logging(ov_core_t *core) {
    static const char *const devices[] = {"AUTO", "HETERO:CPU"};
    char text[8192];
    ov_model_t *model = read_text(core, text, add_model(text, sizeof text, "2,3"), 1);
    for (int i = 0; i < 2; i++) {
        ov_compiled_model_t *compiled = NULL;
        ov_infer_request_t *request = NULL;
        ov_util_set_log_callback(count);
        ov_status_e status = i ? ov_core_compile_model(core, model, devices[i], 0, &compiled)
                               : ov_core_compile_model(core, model, devices[i], 2, &compiled, ov_property_key_log_level, "LOG_DEBUG");
        say("%s: %d", devices[i], status);
        NEED(ov_compiled_model_create_infer_request(compiled, &request));
        NEED(ov_infer_request_infer(request));
        ov_infer_request_free(request);
        ov_util_set_log_callback(NULL);
        ov_compiled_model_free(compiled);
    }
    ov_model_free(model);
    ov_util_reset_log_callback();
    say("messages: %d", __atomic_load_n(&messages, __ATOMIC_RELAXED) > 0);
}

int main(void) {
    ov_core_t *core = NULL;
    NEED(ov_core_create(&core));
    say("no error yet: %d", ov_get_last_err_msg() == NULL);
    versions(core);
    properties(core);
    errors(core);
    ov_core_free(core);
    say("no error left: %d", ov_get_last_err_msg() == NULL);
    NEED(ov_core_create(&core));
    compiled_properties(core);
    logging(core);
    ov_core_free(core);
    ov_shutdown();
    say("shut down");
    return 0;
}
