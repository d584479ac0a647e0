/* Models: from memory and from files, ports, new shapes, exported models. */
#include "common.h"
#include <sys/stat.h>

static void port(const char *what, ov_output_const_port_t *of) {
    char *name = NULL;
    ov_shape_t shape = {0, NULL};
    ov_partial_shape_t partial = {{0, 0}, NULL};
    ov_element_type_e type = DYNAMIC;
    NEED(ov_port_get_element_type(of, &type));
    ov_status_e status = ov_port_get_any_name(of, &name);
    say("%s: type %d, name %d %s", what, type, status, status == OK ? name : "-");
    if (status == OK)
        ov_free(name);
    NEED(ov_port_get_partial_shape(of, &partial));
    const char *text = ov_partial_shape_to_string(partial);
    say("%s: %s", what, text);
    ov_free(text);
    ov_partial_shape_free(&partial);
    if (TOLD(ov_const_port_get_shape(of, &shape)) == OK)
        say_shape(what, &shape);
    ov_output_const_port_free(of);
}

static void plain_port(const char *what, ov_output_port_t *of) {
    ov_shape_t shape = {0, NULL};
    if (told(what, ov_port_get_shape(of, &shape)) == OK)
        say_shape(what, &shape);
    ov_output_port_free(of);
}

static void ports(ov_model_t *model) {
    ov_output_const_port_t *of = NULL;
    ov_output_port_t *other = NULL;
    size_t inputs = 0, outputs = 0;
    char *name = NULL;
    NEED(ov_model_inputs_size(model, &inputs));
    NEED(ov_model_outputs_size(model, &outputs));
    NEED(ov_model_get_friendly_name(model, &name));
    say("%s: %zu inputs, %zu outputs, dynamic %d", name, inputs, outputs, ov_model_is_dynamic(model));
    ov_free(name);
    if (TOLD(ov_model_const_input(model, &of)) == OK)
        port("input", of);
    if (TOLD(ov_model_const_output(model, &of)) == OK)
        port("output", of);
    for (size_t i = 0; i < inputs + 1; i++)
        if (TOLD(ov_model_const_input_by_index(model, i, &of)) == OK)
            port("input by index", of);
    for (size_t i = 0; i < outputs + 1; i++)
        if (TOLD(ov_model_const_output_by_index(model, i, &of)) == OK)
            port("output by index", of);
    if (TOLD(ov_model_const_input_by_name(model, "x", &of)) == OK)
        port("x", of);
    if (TOLD(ov_model_const_output_by_name(model, "sum", &of)) == OK)
        port("sum", of);
    if (TOLD(ov_model_input(model, &other)) == OK)
        plain_port("input", other);
    if (TOLD(ov_model_output(model, &other)) == OK)
        plain_port("output", other);
    if (TOLD(ov_model_input_by_index(model, 0, &other)) == OK)
        plain_port("input by index", other);
    if (TOLD(ov_model_output_by_index(model, 0, &other)) == OK)
        plain_port("output by index", other);
    if (TOLD(ov_model_input_by_name(model, "x", &other)) == OK)
        plain_port("x", other);
    if (TOLD(ov_model_output_by_name(model, "y", &other)) == OK)
        plain_port("y", other);
    TOLD(ov_model_input_by_name(model, "nobody", &other));
}

static void compiled_ports(ov_compiled_model_t *compiled) {
    ov_output_const_port_t *of = NULL;
    size_t inputs = 0, outputs = 0;
    NEED(ov_compiled_model_inputs_size(compiled, &inputs));
    NEED(ov_compiled_model_outputs_size(compiled, &outputs));
    say("%zu inputs, %zu outputs", inputs, outputs);
    if (TOLD(ov_compiled_model_input(compiled, &of)) == OK)
        port("input", of);
    if (TOLD(ov_compiled_model_output(compiled, &of)) == OK)
        port("output", of);
    if (TOLD(ov_compiled_model_input_by_index(compiled, 0, &of)) == OK)
        port("input by index", of);
    if (TOLD(ov_compiled_model_output_by_index(compiled, outputs, &of)) == OK)
        port("output by index", of);
    if (TOLD(ov_compiled_model_input_by_name(compiled, "x", &of)) == OK)
        port("x", of);
    if (TOLD(ov_compiled_model_output_by_name(compiled, "y", &of)) == OK)
        port("y", of);
}

static ov_model_t *file(ov_core_t *core, const char *path, const char *weights_path) {
    ov_model_t *model = NULL;
    char what[128];
    ov_status_e status = ov_core_read_model(core, path, weights_path, &model);
    snprintf(what, sizeof what, "%s and %s", path, weights_path ? weights_path : "nothing");
    say("%s: %d", what, status);
    return status == OK ? model : NULL;
}

static void files(ov_core_t *core) {
    char text[8192];
    size_t bytes = add_model(text, sizeof text, "2,3");
    ov_model_t *model = NULL;
    ov_compiled_model_t *compiled = NULL;
    mkdir("models ż", 0777);
    write_file("models ż/add.xml", text, bytes);
    write_file("models ż/add.bin", weights, sizeof weights);
    write_file("other.bin", weights, sizeof weights);
    write_file("short.bin", weights, 8);
    write_file("alone.xml", text, bytes);
    write_file("garbage.xml", "<net><layers>", 13);
    write_file("garbage.onnx", "\x08\x01garbage", 9);
    write_file("empty.xml", "", 0);
    ov_model_free(file(core, "models ż/add.xml", NULL));
    ov_model_free(file(core, "models ż/add.xml", ""));
    ov_model_free(file(core, "alone.xml", "other.bin"));
    file(core, "alone.xml", "short.bin");
    file(core, "alone.xml", "nowhere.bin");
    file(core, "alone.xml", NULL);
    file(core, "garbage.xml", NULL);
    file(core, "garbage.onnx", NULL);
    file(core, "empty.xml", NULL);
    file(core, "nowhere/model.xml", NULL);
    file(core, "models ż", NULL);
    TOLD(ov_core_read_model(core, NULL, NULL, &model));
    TOLD(ov_core_read_model(core, "alone.xml", "other.bin", NULL));
    if (TOLD(ov_core_read_model_unicode(core, L"models \x17c/add.xml", NULL, &model)) == OK)
        ov_model_free(model);
    if (TOLD(ov_core_read_model_unicode(core, L"alone.xml", L"other.bin", &model)) == OK)
        ov_model_free(model);
    if (TOLD(ov_core_compile_model_from_file(core, "models ż/add.xml", "CPU", 2, &compiled, "NUM_STREAMS", "1")) == OK)
        ov_compiled_model_free(compiled);
    if (TOLD(ov_core_compile_model_from_file_unicode(core, L"models \x17c/add.xml", "CPU", 0, &compiled)) == OK)
        ov_compiled_model_free(compiled);
    const ov_property_t one = {"NUM_STREAMS", "1"};
    if (TOLD(ov_core_compile_model_from_file_props(core, "models ż/add.xml", "CPU", 1, &one, &compiled)) == OK)
        ov_compiled_model_free(compiled);
    if (TOLD(ov_core_compile_model_from_file_unicode_props(core, L"models \x17c/add.xml", NULL, 0, NULL, &compiled)) == OK)
        ov_compiled_model_free(compiled);
    TOLD(ov_core_compile_model_from_file(core, "models ż/add.xml", "CPU", 1, &compiled, "NUM_STREAMS"));
    say("none: %d", ov_core_compile_model_from_file(core, "nowhere.xml", "CPU", 0, &compiled));
}

static void memory(ov_core_t *core) {
    char text[8192];
    size_t bytes = add_model(text, sizeof text, "2,3");
    ov_model_t *model = NULL;
    TOLD(ov_core_read_model_from_memory_buffer(core, text, bytes, NULL, &model));
    TOLD(ov_core_read_model_from_memory_buffer(core, text, bytes / 2, NULL, &model));
    TOLD(ov_core_read_model_from_memory_buffer(core, "garbage", 7, NULL, &model));
    TOLD(ov_core_read_model_from_memory_buffer(core, text, 0, NULL, &model));
    TOLD(ov_core_read_model_from_memory_buffer(core, NULL, bytes, NULL, &model));
    model = read_text(core, text, bytes, 1);
    ports(model);
    ov_model_free(model);
    ov_model_free(NULL);
}

static void reshape(ov_core_t *core) {
    char text[8192];
    ov_model_t *model = read_text(core, text, add_model(text, sizeof text, "-1,3"), 1);
    const ov_dimension_t dims[2] = {{4, 4}, {3, 3}}, range[2] = {{1, 8}, {3, 3}}, wrong[2] = {{4, 4}, {5, 5}};
    ov_partial_shape_t fixed = {{2, 2}, (ov_dimension_t *)dims}, ranged = {{2, 2}, (ov_dimension_t *)range};
    ov_partial_shape_t bad = {{2, 2}, (ov_dimension_t *)wrong};
    const char *names[1] = {"x"};
    const size_t indexes[1] = {0};
    ov_output_port_t *input = NULL;
    ports(model);
    TOLD(ov_model_reshape(model, names, &fixed, 1));
    ports(model);
    TOLD(ov_model_reshape_input_by_name(model, "x", ranged));
    say("dynamic %d", ov_model_is_dynamic(model));
    TOLD(ov_model_reshape_single_input(model, fixed));
    say("dynamic %d", ov_model_is_dynamic(model));
    TOLD(ov_model_reshape_by_port_indexes(model, indexes, &ranged, 1));
    say("dynamic %d", ov_model_is_dynamic(model));
    NEED(ov_model_input(model, &input));
    TOLD(ov_model_reshape_by_ports(model, (const ov_output_port_t **)&input, &fixed, 1));
    say("dynamic %d", ov_model_is_dynamic(model));
    ov_output_port_free(input);
    TOLD(ov_model_reshape_single_input(model, bad));
    TOLD(ov_model_reshape_input_by_name(model, "nobody", fixed));
    TOLD(ov_model_reshape(model, NULL, NULL, 0));
    ov_model_free(model);
}

static void exported(ov_core_t *core) {
    ov_compiled_model_t *compiled = compile_add(core, "2,3"), *again = NULL;
    ov_model_t *model = NULL;
    compiled_ports(compiled);
    if (TOLD(ov_compiled_model_get_runtime_model(compiled, &model)) == OK) {
        size_t inputs = 0;
        NEED(ov_model_inputs_size(model, &inputs));
        say("%zu inputs", inputs);
        ov_model_free(model);
    }
    TOLD(ov_compiled_model_export_model(compiled, "nowhere/model.blob"));
    TOLD(ov_compiled_model_export_model(compiled, NULL));
    TOLD(ov_compiled_model_export_model(compiled, "model.blob"));
    ov_compiled_model_free(compiled);
    FILE *blob = fopen("model.blob", "rb");
    static char content[1 << 20];
    size_t bytes = blob ? fread(content, 1, sizeof content, blob) : 0;
    if (blob)
        fclose(blob);
    say("exported: %d", bytes > 100);
    if (TOLD(ov_core_import_model(core, content, bytes, "CPU", &again)) == OK) {
        compiled_ports(again);
        ov_compiled_model_free(again);
    }
    say("half of it: %d", ov_core_import_model(core, content, bytes / 2, "CPU", &again) != OK);
}

int main(void) {
    ov_core_t *core = NULL;
    NEED(ov_core_create(&core));
    files(core);
    memory(core);
    reshape(core);
    exported(core);
    ov_core_free(core);
    return 0;
}
