/* What the API server does beside calling the library. */
#include <aviary/server.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "openvino_types.h"

#define VENDOR(function) __typeof__(&function) vendor_##function = (__typeof__(&function))aviary_function(#function)

/* Hash of a name; 0 of none. The guest has the same in places.c. */
static uint64_t hash(const char *name) {
    uint64_t value = 14695981039346656037u;
    for (; name && *name; name++)
        value = (value ^ (unsigned char)*name) * 1099511628211u;
    return name ? value | 1 : 0;
}

static uint64_t name_of(ov_output_const_port_t *port) {
    VENDOR(ov_port_get_any_name);
    VENDOR(ov_free);
    char *name = NULL;
    if (vendor_ov_port_get_any_name(port, &name) != OK)
        return 0;
    uint64_t value = hash(name);
    vendor_ov_free(name);
    return value;
}

static int is_fixed(ov_output_const_port_t *port) {
    VENDOR(ov_port_get_partial_shape);
    VENDOR(ov_partial_shape_is_dynamic);
    VENDOR(ov_partial_shape_free);
    ov_partial_shape_t shape = {{0, 0}, NULL};
    if (vendor_ov_port_get_partial_shape(port, &shape) != OK)
        return 0;
    int fixed = !vendor_ov_partial_shape_is_dynamic(shape);
    vendor_ov_partial_shape_free(&shape);
    return fixed;
}

void tell_ports(ov_compiled_model_t *model, struct told_ports *to) {
    VENDOR(ov_compiled_model_inputs_size);
    VENDOR(ov_compiled_model_outputs_size);
    VENDOR(ov_compiled_model_input_by_index);
    VENDOR(ov_compiled_model_output_by_index);
    VENDOR(ov_output_const_port_free);
    size_t counts[2] = {0, 0};
    vendor_ov_compiled_model_inputs_size(model, &counts[0]);
    vendor_ov_compiled_model_outputs_size(model, &counts[1]);
    for (int side = 0; side < 2; side++) {
        to->count[side] = (uint32_t)counts[side];
        for (size_t i = 0; i < counts[side] && i < sizeof to->names[side] / sizeof to->names[side][0]; i++) {
            ov_output_const_port_t *port = NULL;
            __typeof__(vendor_ov_compiled_model_input_by_index) get =
                side ? vendor_ov_compiled_model_output_by_index : vendor_ov_compiled_model_input_by_index;
            if (get(model, i, &port) != OK)
                continue;
            to->names[side][i] = name_of(port);
            to->fixed[side] |= (uint64_t)is_fixed(port) << i;
            vendor_ov_output_const_port_free(port);
        }
    }
}

uint64_t server_tensor_bytes(const ov_tensor_t *tensor) {
    VENDOR(ov_tensor_get_byte_size);
    size_t bytes = 0;
    return tensor && vendor_ov_tensor_get_byte_size(tensor, &bytes) == OK ? bytes : 0;
}

/* Texts are objects of C++. */
int has_content(const ov_tensor_t *tensor) {
    VENDOR(ov_tensor_get_element_type);
    ov_element_type_e type = DYNAMIC;
    return !tensor || vendor_ov_tensor_get_element_type(tensor, &type) != OK || type != STRING;
}

static ov_status_e content(const ov_tensor_t *tensor, void **data, size_t *bytes) {
    VENDOR(ov_tensor_data);
    if (!has_content(tensor))
        return NOT_IMPLEMENTED;
    *bytes = server_tensor_bytes(tensor);
    return vendor_ov_tensor_data(tensor, data);
}

void *content_function(void) {
    return (void *)content;
}

/* A model keeps its weights: it gets a tensor of the library's own. */
static ov_status_e read_with(const ov_core_t *core, const char *model, size_t bytes, const void *weights, size_t weight_bytes,
                             ov_model_t **to) {
    VENDOR(ov_core_read_model_from_memory_buffer);
    VENDOR(ov_tensor_create);
    VENDOR(ov_tensor_data);
    VENDOR(ov_tensor_free);
    int64_t count = (int64_t)weight_bytes;
    ov_tensor_t *copy = NULL;
    void *data = NULL;
    ov_status_e status = vendor_ov_tensor_create(U8, (ov_shape_t){1, &count}, &copy);
    if (status == OK && weight_bytes > 0)
        status = vendor_ov_tensor_data(copy, &data);
    if (status == OK && weight_bytes > 0)
        memcpy(data, weights, weight_bytes);
    if (status == OK)
        status = vendor_ov_core_read_model_from_memory_buffer(core, model, bytes, copy, to);
    if (copy)
        vendor_ov_tensor_free(copy);
    return status;
}

static ov_status_e read_weights(const ov_core_t *core, const char *model, const size_t bytes, const ov_tensor_t *weights,
                                ov_model_t **to) {
    VENDOR(ov_core_read_model_from_memory_buffer);
    VENDOR(ov_tensor_data);
    void *data = NULL;
    if (!weights || !core || !model || !bytes || !to)
        return vendor_ov_core_read_model_from_memory_buffer(core, model, bytes, NULL, to);
    if (!has_content(weights))
        return NOT_IMPLEMENTED;
    ov_status_e status = vendor_ov_tensor_data(weights, &data);
    return status == OK ? read_with(core, model, bytes, data, server_tensor_bytes(weights), to) : status;
}

/* Without a model the library says that it cannot read one. */
static ov_status_e read_files(const ov_core_t *core, const void *model, size_t bytes, const void *weights, size_t weight_bytes,
                              ov_model_t **to) {
    VENDOR(ov_core_read_model_from_memory_buffer);
    if (!model || !bytes)
        return vendor_ov_core_read_model_from_memory_buffer(core, " ", 1, NULL, to);
    if (!weights)
        return vendor_ov_core_read_model_from_memory_buffer(core, model, bytes, NULL, to);
    return read_with(core, model, bytes, weights, weight_bytes, to);
}

/* The library writes files only: into one that has no name. */
static ov_status_e export_content(const ov_compiled_model_t *model, char **content, size_t *bytes) {
    VENDOR(ov_compiled_model_export_model);
    char path[64];
    struct stat about;
    ov_status_e status = GENERAL_ERROR;
    /* Older C libraries have no function for it. */
    int file = (int)syscall(SYS_memfd_create, "openvino", MFD_CLOEXEC);
    if (file < 0)
        return GENERAL_ERROR;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    status = vendor_ov_compiled_model_export_model(model, path);
    if (status == OK && fstat(file, &about))
        status = GENERAL_ERROR;
    if (status == OK) {
        *bytes = (size_t)about.st_size;
        *content = malloc(*bytes + 1);
        if (!*content || pread(file, *content, *bytes, 0) != about.st_size)
            status = GENERAL_ERROR;
    }
    close(file);
    return status;
}

void *read_weights_function(void) {
    return (void *)read_weights;
}

void *read_function(void) {
    return (void *)read_files;
}

void *export_function(void) {
    return (void *)export_content;
}

static ov_status_e infer(ov_infer_request_t *request) {
    VENDOR(ov_infer_request_start_async);
    VENDOR(ov_infer_request_wait);
    ov_status_e status = vendor_ov_infer_request_start_async(request);
    return status == OK ? vendor_ov_infer_request_wait(request) : status;
}

void *infer_function(void) {
    return (void *)infer;
}
