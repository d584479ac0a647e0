/* Pre- and postprocessing: an image of bytes, resized, with other channels and another layout, for a model that takes numbers. */
#include "common.h"

/* y = x, of 1 by 3 by 4 by 4 numbers. */
static size_t image_model(char *to, size_t room) {
    static const char dims[] = "<dim>1</dim><dim>3</dim><dim>4</dim><dim>4</dim>";
    return (size_t)snprintf(
        to, room,
        "<?xml version=\"1.0\"?><net name=\"image\" version=\"11\"><layers>"
        "<layer id=\"0\" name=\"x\" type=\"Parameter\" version=\"opset1\"><data shape=\"1,3,4,4\" element_type=\"f32\"/><output>"
        "<port id=\"0\" precision=\"FP32\" names=\"x\">%s</port></output></layer>"
        "<layer id=\"1\" name=\"y\" type=\"ReLU\" version=\"opset1\"><input><port id=\"0\" precision=\"FP32\">%s</port></input><output>"
        "<port id=\"1\" precision=\"FP32\" names=\"y\">%s</port></output></layer>"
        "<layer id=\"2\" name=\"r\" type=\"Result\" version=\"opset1\"><input><port id=\"0\" precision=\"FP32\">%s</port></input></layer>"
        "</layers><edges><edge from-layer=\"0\" from-port=\"0\" to-layer=\"1\" to-port=\"0\"/>"
        "<edge from-layer=\"1\" from-port=\"1\" to-layer=\"2\" to-port=\"0\"/></edges><rt_info/></net>",
        dims, dims, dims, dims);
}

struct parts {
    ov_preprocess_prepostprocessor_t *all;
    ov_preprocess_input_info_t *input;
    ov_preprocess_input_tensor_info_t *tensor;
    ov_preprocess_preprocess_steps_t *steps;
    ov_preprocess_input_model_info_t *model;
};

static struct parts parts_of(const ov_model_t *model) {
    struct parts parts;
    NEED(ov_preprocess_prepostprocessor_create(model, &parts.all));
    NEED(ov_preprocess_prepostprocessor_get_input_info(parts.all, &parts.input));
    NEED(ov_preprocess_input_info_get_tensor_info(parts.input, &parts.tensor));
    NEED(ov_preprocess_input_info_get_preprocess_steps(parts.input, &parts.steps));
    NEED(ov_preprocess_input_info_get_model_info(parts.input, &parts.model));
    return parts;
}

static void free_parts(struct parts parts) {
    ov_preprocess_input_info_free(parts.input);
    ov_preprocess_input_tensor_info_free(parts.tensor);
    ov_preprocess_preprocess_steps_free(parts.steps);
    ov_preprocess_input_model_info_free(parts.model);
    ov_preprocess_prepostprocessor_free(parts.all);
}

/* What the built model makes of bytes that count up. */
static void run(ov_core_t *core, const ov_model_t *model, const char *what) {
    ov_compiled_model_t *compiled = NULL;
    ov_infer_request_t *request = NULL;
    ov_tensor_t *tensor = NULL;
    ov_element_type_e type = DYNAMIC;
    ov_shape_t shape = {0, NULL};
    void *data = NULL;
    size_t bytes = 0;
    NEED(ov_core_compile_model(core, model, "CPU", 0, &compiled));
    NEED(ov_compiled_model_create_infer_request(compiled, &request));
    NEED(ov_infer_request_get_input_tensor(request, &tensor));
    NEED(ov_tensor_get_element_type(tensor, &type));
    NEED(ov_tensor_get_shape(tensor, &shape));
    say("%s: input type %d", what, type);
    say_shape(what, &shape);
    NEED(ov_tensor_data(tensor, &data));
    NEED(ov_tensor_get_byte_size(tensor, &bytes));
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)data)[i] = type == F32 ? 0 : (unsigned char)(i * 5);
    ov_tensor_free(tensor);
    NEED(ov_infer_request_infer(request));
    NEED(ov_infer_request_get_output_tensor(request, &tensor));
    NEED(ov_tensor_get_element_type(tensor, &type));
    NEED(ov_tensor_get_byte_size(tensor, &bytes));
    NEED(ov_tensor_data(tensor, &data));
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = sum * 31 + ((unsigned char *)data)[i];
    say("%s: output type %d, %zu bytes, %u", what, type, bytes, sum);
    ov_tensor_free(tensor);
    ov_infer_request_free(request);
    ov_compiled_model_free(compiled);
}

static void built(ov_core_t *core, struct parts parts, const char *what) {
    ov_model_t *model = NULL;
    if (told(what, ov_preprocess_prepostprocessor_build(parts.all, &model)) == OK) {
        run(core, model, what);
        ov_model_free(model);
    }
    free_parts(parts);
}

static void resized(ov_core_t *core, const ov_model_t *model) {
    struct parts parts = parts_of(model);
    ov_layout_t *image = NULL, *planes = NULL;
    NEED(ov_layout_create("NHWC", &image));
    NEED(ov_layout_create("NCHW", &planes));
    TOLD(ov_preprocess_input_tensor_info_set_element_type(parts.tensor, U8));
    TOLD(ov_preprocess_input_tensor_info_set_layout(parts.tensor, image));
    TOLD(ov_preprocess_input_tensor_info_set_spatial_static_shape(parts.tensor, 8, 6));
    TOLD(ov_preprocess_input_tensor_info_set_color_format(parts.tensor, BGR));
    TOLD(ov_preprocess_preprocess_steps_convert_element_type(parts.steps, F32));
    TOLD(ov_preprocess_preprocess_steps_convert_color(parts.steps, RGB));
    TOLD(ov_preprocess_preprocess_steps_resize(parts.steps, RESIZE_LINEAR));
    TOLD(ov_preprocess_preprocess_steps_mean(parts.steps, 3.5f));
    TOLD(ov_preprocess_preprocess_steps_scale(parts.steps, 2.0f));
    TOLD(ov_preprocess_preprocess_steps_convert_layout(parts.steps, planes));
    TOLD(ov_preprocess_input_model_info_set_layout(parts.model, planes));
    built(core, parts, "resized");
    ov_layout_free(image);
    ov_layout_free(planes);
}

static void per_channel(ov_core_t *core, const ov_model_t *model) {
    struct parts parts = parts_of(model);
    const float means[3] = {1, 2, 3}, scales[3] = {2, 4, 8};
    ov_layout_t *planes = NULL;
    NEED(ov_layout_create("NCHW", &planes));
    TOLD(ov_preprocess_input_tensor_info_set_element_type(parts.tensor, U8));
    TOLD(ov_preprocess_input_tensor_info_set_layout(parts.tensor, planes));
    TOLD(ov_preprocess_preprocess_steps_convert_element_type(parts.steps, F32));
    TOLD(ov_preprocess_preprocess_steps_mean_multi_channels(parts.steps, means, 3));
    TOLD(ov_preprocess_preprocess_steps_scale_multi_channels(parts.steps, scales, 3));
    TOLD(ov_preprocess_preprocess_steps_mean_multi_channels(parts.steps, NULL, 0));
    TOLD(ov_preprocess_preprocess_steps_reverse_channels(parts.steps));
    built(core, parts, "per channel");
    ov_layout_free(planes);
}

static void cut(ov_core_t *core, const ov_model_t *model) {
    struct parts parts = parts_of(model);
    int32_t begin[4] = {0, 0, 1, 1}, end[4] = {1, 3, 4, 4};
    const int before[4] = {0, 0, 1, 0}, behind[4] = {0, 0, 0, 1};
    ov_tensor_t *like = NULL;
    int64_t dims[4] = {1, 3, 4, 4};
    NEED(ov_tensor_create(U8, (ov_shape_t){4, dims}, &like));
    TOLD(ov_preprocess_input_tensor_info_set_from(parts.tensor, like));
    ov_tensor_free(like);
    TOLD(ov_preprocess_preprocess_steps_convert_element_type(parts.steps, F32));
    TOLD(ov_preprocess_preprocess_steps_crop(parts.steps, begin, 4, end, 4));
    TOLD(ov_preprocess_preprocess_steps_pad(parts.steps, before, 4, behind, 4, 7.0f, CONSTANT));
    TOLD(ov_preprocess_preprocess_steps_crop(parts.steps, NULL, 0, NULL, 0));
    TOLD(ov_preprocess_input_tensor_info_set_memory_type(parts.tensor, "GPU_SURFACE"));
    built(core, parts, "cut");
}

/* Building changes the model: each way has one of its own. */
static void two_planes(ov_core_t *core, const ov_model_t *model) {
    static int way;
    const char *names[2] = {"y", "uv"};
    ov_layout_t *planes = NULL;
    ov_model_t *made = NULL;
    struct parts parts = parts_of(model);
    size_t inputs = 0;
    NEED(ov_layout_create("NCHW", &planes));
    NEED(ov_preprocess_input_tensor_info_set_element_type(parts.tensor, U8));
    if (way == 0)
        TOLD(ov_preprocess_input_tensor_info_set_color_format_with_subname(parts.tensor, NV12_TWO_PLANES, 2, "y", "uv"));
    else
        TOLD(ov_preprocess_input_tensor_info_set_color_format_with_subnames(parts.tensor, NV12_TWO_PLANES, way == 1 ? 2 : 1, names));
    way++;
    NEED(ov_preprocess_preprocess_steps_convert_color(parts.steps, RGB));
    NEED(ov_preprocess_preprocess_steps_convert_element_type(parts.steps, F32));
    NEED(ov_preprocess_input_model_info_set_layout(parts.model, planes));
    if (TOLD(ov_preprocess_prepostprocessor_build(parts.all, &made)) == OK) {
        NEED(ov_model_inputs_size(made, &inputs));
        say("%zu inputs", inputs);
        ov_model_free(made);
    }
    free_parts(parts);
    ov_layout_free(planes);
    (void)core;
}

static void outputs(ov_core_t *core, const ov_model_t *model) {
    struct parts parts = parts_of(model);
    ov_preprocess_output_info_t *output = NULL, *other = NULL;
    ov_preprocess_output_tensor_info_t *tensor = NULL;
    ov_preprocess_input_info_t *input = NULL;
    NEED(ov_preprocess_prepostprocessor_get_output_info(parts.all, &output));
    TOLD(ov_preprocess_prepostprocessor_get_output_info_by_index(parts.all, 0, &other));
    ov_preprocess_output_info_free(other);
    TOLD(ov_preprocess_prepostprocessor_get_output_info_by_name(parts.all, "y", &other));
    ov_preprocess_output_info_free(other);
    TOLD(ov_preprocess_prepostprocessor_get_output_info_by_name(parts.all, "nobody", &other));
    TOLD(ov_preprocess_prepostprocessor_get_output_info_by_index(parts.all, 3, &other));
    TOLD(ov_preprocess_prepostprocessor_get_input_info_by_index(parts.all, 0, &input));
    ov_preprocess_input_info_free(input);
    TOLD(ov_preprocess_prepostprocessor_get_input_info_by_name(parts.all, "x", &input));
    ov_preprocess_input_info_free(input);
    TOLD(ov_preprocess_prepostprocessor_get_input_info_by_name(parts.all, "nobody", &input));
    NEED(ov_preprocess_output_info_get_tensor_info(output, &tensor));
    ov_preprocess_output_info_free(output);
    TOLD(ov_preprocess_output_set_element_type(tensor, F64));
    TOLD(ov_preprocess_output_set_element_type(NULL, F64));
    ov_preprocess_output_tensor_info_free(tensor);
    built(core, parts, "output");
}

int main(void) {
    ov_core_t *core = NULL;
    char text[8192];
    NEED(ov_core_create(&core));
    size_t bytes = image_model(text, sizeof text);
    void (*const all[])(ov_core_t *, const ov_model_t *) = {resized, per_channel, cut, two_planes, two_planes, two_planes, outputs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ov_model_t *model = read_text(core, text, bytes, 0);
        all[i](core, model);
        ov_model_free(model);
    }
    TOLD(ov_preprocess_prepostprocessor_create(NULL, NULL));
    ov_preprocess_prepostprocessor_free(NULL);
    ov_core_free(core);
    return 0;
}
