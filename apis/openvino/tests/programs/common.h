/* Models written by the tests themselves, and lines that are compared with native ones. */
#ifndef COMMON_H
#define COMMON_H

#include <openvino/c/openvino.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    putchar('\n');
    fflush(stdout);
}

/* A line with a status and, of a failed call, what the library last said: without its first line, which names a place in its source. */
static inline ov_status_e told(const char *what, ov_status_e status) {
    const char *text = status == GENERAL_ERROR || status == NOT_IMPLEMENTED ? ov_get_last_err_msg() : NULL;
    const char *rest = text ? strchr(text, '\n') : NULL;
    say("%s: %d %s", what, status, rest ? rest + 1 : "");
    ov_free(text);
    return status;
}
#define TOLD(call) told(#call, call)

/* One that has to succeed. */
static inline void need(const char *what, ov_status_e status) {
    if (status == OK)
        return;
    const char *text = ov_get_last_err_msg();
    say("%s failed: %d %s", what, status, text ? text : "");
    exit(3);
}
#define NEED(call) need(#call, call)

static inline void write_file(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file))
        exit(4);
}

/* y = x + w, both of 2 by 3 numbers; `shape` is the input's: "2,3", or "-1,3" for any number of rows. */
static inline size_t add_model(char *to, size_t room, const char *shape) {
    const char *rows = shape[0] == '-' ? "-1" : "2";
    const char *w = shape[0] == '-' ? "1" : "2";
    return (size_t)snprintf(
        to, room,
        "<?xml version=\"1.0\"?><net name=\"add\" version=\"11\"><layers>"
        "<layer id=\"0\" name=\"x\" type=\"Parameter\" version=\"opset1\"><data shape=\"%s\" element_type=\"f32\"/><output>"
        "<port id=\"0\" precision=\"FP32\" names=\"x\"><dim>%s</dim><dim>3</dim></port></output></layer>"
        "<layer id=\"1\" name=\"w\" type=\"Const\" version=\"opset1\"><data element_type=\"f32\" shape=\"%s,3\" offset=\"0\" "
        "size=\"%d\"/><output><port id=\"0\" precision=\"FP32\"><dim>%s</dim><dim>3</dim></port></output></layer>"
        "<layer id=\"2\" name=\"sum\" type=\"Add\" version=\"opset1\"><data auto_broadcast=\"numpy\"/><input>"
        "<port id=\"0\" precision=\"FP32\"><dim>%s</dim><dim>3</dim></port>"
        "<port id=\"1\" precision=\"FP32\"><dim>%s</dim><dim>3</dim></port></input><output>"
        "<port id=\"2\" precision=\"FP32\" names=\"y,sum\"><dim>%s</dim><dim>3</dim></port></output></layer>"
        "<layer id=\"3\" name=\"r\" type=\"Result\" version=\"opset1\"><input><port id=\"0\" precision=\"FP32\"><dim>%s</dim>"
        "<dim>3</dim></port></input></layer></layers><edges>"
        "<edge from-layer=\"0\" from-port=\"0\" to-layer=\"2\" to-port=\"0\"/>"
        "<edge from-layer=\"1\" from-port=\"0\" to-layer=\"2\" to-port=\"1\"/>"
        "<edge from-layer=\"2\" from-port=\"2\" to-layer=\"3\" to-port=\"0\"/></edges><rt_info/></net>",
        shape, rows, w, w[0] == '1' ? 12 : 24, w, rows, w, rows, rows);
}

/* p = a * b, q = p * b * ... * b (`times` products in all), of squares of `n`: two inputs, two outputs, no weights. */
static inline size_t product_model(char *to, size_t room, int n, int times) {
    size_t at = (size_t)snprintf(to, room, "<?xml version=\"1.0\"?><net name=\"product\" version=\"11\"><layers>");
    char dims[64];
    snprintf(dims, sizeof dims, "<dim>%d</dim><dim>%d</dim>", n, n);
    for (int i = 0; i < 2; i++)
        at += (size_t)snprintf(to + at, room - at,
                               "<layer id=\"%d\" name=\"%c\" type=\"Parameter\" version=\"opset1\"><data shape=\"%d,%d\" element_type=\"f32\"/>"
                               "<output><port id=\"0\" precision=\"FP32\" names=\"%c\">%s</port></output></layer>",
                               i, "ab"[i], n, n, "ab"[i], dims);
    for (int i = 0; i < times; i++)
        at += (size_t)snprintf(to + at, room - at,
                               "<layer id=\"%d\" name=\"m%d\" type=\"MatMul\" version=\"opset1\"><data transpose_a=\"false\" "
                               "transpose_b=\"false\"/><input><port id=\"0\" precision=\"FP32\">%s</port><port id=\"1\" "
                               "precision=\"FP32\">%s</port></input><output><port id=\"2\" precision=\"FP32\" names=\"m%d\">%s</port>"
                               "</output></layer>",
                               2 + i, i, dims, dims, i, dims);
    for (int i = 0; i < 2; i++)
        at += (size_t)snprintf(to + at, room - at,
                               "<layer id=\"%d\" name=\"r%d\" type=\"Result\" version=\"opset1\"><input><port id=\"0\" precision=\"FP32\">%s"
                               "</port></input></layer>",
                               2 + times + i, i, dims);
    at += (size_t)snprintf(to + at, room - at, "</layers><edges>");
    for (int i = 0; i < times; i++)
        at += (size_t)snprintf(to + at, room - at,
                               "<edge from-layer=\"%d\" from-port=\"%d\" to-layer=\"%d\" to-port=\"0\"/>"
                               "<edge from-layer=\"1\" from-port=\"0\" to-layer=\"%d\" to-port=\"1\"/>",
                               i ? 1 + i : 0, i ? 2 : 0, 2 + i, 2 + i);
    for (int i = 0; i < 2; i++)
        at += (size_t)snprintf(to + at, room - at, "<edge from-layer=\"%d\" from-port=\"2\" to-layer=\"%d\" to-port=\"0\"/>",
                               i ? 1 + times : 2, 2 + times + i);
    return at + (size_t)snprintf(to + at, room - at, "</edges><rt_info/></net>");
}

static const float weights[6] = {10, 20, 30, 40, 50, 60};

/* The model of one of these texts. */
static inline ov_model_t *read_text(ov_core_t *core, const char *text, size_t bytes, int has_weights) {
    ov_model_t *model = NULL;
    ov_tensor_t *tensor = NULL;
    if (has_weights) {
        int64_t count = sizeof weights;
        NEED(ov_tensor_create_from_host_ptr(U8, (ov_shape_t){1, &count}, (void *)weights, &tensor));
    }
    NEED(ov_core_read_model_from_memory_buffer(core, text, bytes, tensor, &model));
    if (tensor)
        ov_tensor_free(tensor);
    return model;
}

static inline ov_compiled_model_t *compile_add(ov_core_t *core, const char *shape) {
    char text[8192];
    ov_compiled_model_t *compiled = NULL;
    ov_model_t *model = read_text(core, text, add_model(text, sizeof text, shape), 1);
    NEED(ov_core_compile_model(core, model, "CPU", 2, &compiled, "INFERENCE_NUM_THREADS", "1"));
    ov_model_free(model);
    return compiled;
}

static inline ov_compiled_model_t *compile_product(ov_core_t *core, int n, int times) {
    static char text[65536];
    ov_compiled_model_t *compiled = NULL;
    ov_model_t *model = read_text(core, text, product_model(text, sizeof text, n, times), 0);
    NEED(ov_core_compile_model(core, model, "CPU", 2, &compiled, "INFERENCE_NUM_THREADS", "1"));
    ov_model_free(model);
    return compiled;
}

static inline void say_floats(const char *what, const float *values, int count) {
    printf("%s:", what);
    for (int i = 0; i < count; i++)
        printf(" %g", (double)values[i]);
    say("");
}

static inline void say_shape(const char *what, ov_shape_t *shape) {
    printf("%s: rank %lld:", what, (long long)shape->rank);
    for (int64_t i = 0; i < shape->rank; i++)
        printf(" %lld", (long long)shape->dims[i]);
    say("");
    ov_shape_free(shape);
}

#endif
