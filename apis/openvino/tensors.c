/* Tensors whose memory is the guest's, and what is known of others. */
#include <aviary/guest.h>
#include <stdlib.h>

#include "openvino_types.h"
#include "requests.h"

/* Content that the library alone lays out, and what it refuses, is the library's to make. */
int can_make(uint32_t type, int64_t rank, const int64_t *dims, ov_tensor_t **to) {
    uint64_t bytes = to && rank >= 0 && (dims || rank == 0) ? shape_bytes(type, rank, dims) : 0;
    return bytes > 0 && bytes < UINT64_MAX / 2 && type != U3 && type != U6;
}

/* Without shared memory it is the C library's. */
static void free_own(void *memory) {
    if (aviary_is_zerocopy(memory))
        aviary_zerocopy_free(memory);
    else
        free(memory);
}

ov_status_e make_tensor(ov_element_type_e type, ov_shape_t shape, ov_tensor_t **to) {
    uint64_t bytes = shape_bytes(type, shape.rank, shape.dims);
    void *memory = aviary_zerocopy_alloc(bytes);
    if (!memory && !(memory = aligned_alloc(64, (bytes + 63) / 64 * 64)))
        return GENERAL_ERROR;
    ov_status_e status = ov_tensor_create_from_host_ptr(type, shape, memory, to);
    struct tensor *about = status == OK ? tensor_of(*to) : NULL;
    if (about)
        about->own = memory;
    else
        free_own(memory);
    return status;
}

void note_host(ov_tensor_t *tensor, void *data, uint64_t bytes) {
    struct tensor *about = tensor_of(tensor);
    if (about)
        about->data = data, about->bytes = bytes, about->host = 1;
}

void note_data(const ov_tensor_t *tensor, void **data) {
    struct tensor *about = tensor_of(tensor);
    if (about && data && !about->varies)
        about->data = *data;
}

ov_status_e give_data(const ov_tensor_t *tensor, void **data) {
    struct tensor *about = tensor_of(tensor);
    *data = about ? about->data : NULL;
    return *data ? OK : GENERAL_ERROR;
}

ov_status_e copy_data(const ov_tensor_t *tensor, void **data) {
    size_t bytes = 0;
    return aviary_openvino_content(tensor, data, &bytes);
}

int varies(const ov_tensor_t *tensor) {
    const struct tensor *about = tensor_of(tensor);
    return about && about->varies;
}

/* Memory of which the application has the address would move: the library's own tensors can grow natively. */
int grows(const ov_tensor_t *tensor, int64_t rank, const int64_t *dims) {
    struct tensor *about = tensor_of(tensor);
    ov_element_type_e type = DYNAMIC;
    size_t bytes = 0;
    if (!about || !about->data || (about->host && !about->own) || ov_tensor_get_element_type(tensor, &type) != OK)
        return 0;
    if (!about->bytes && ov_tensor_get_byte_size(tensor, &bytes) == OK)
        about->bytes = bytes;
    return shape_bytes(type, rank, dims) > about->bytes;
}

ov_tensor_t *grown(const ov_tensor_t *tensor) {
    const struct tensor *about = tensor_of(tensor);
    return about ? about->grown : NULL;
}

/* Set on several requests it would have to grow on all of them at once. */
ov_status_e grow(ov_tensor_t *tensor, ov_shape_t shape) {
    struct tensor *about = tensor_of(tensor);
    ov_infer_request_t *request = about && about->holders ? (ov_infer_request_t *)(uintptr_t)about->request : NULL;
    ov_element_type_e type = DYNAMIC;
    ov_tensor_t *made = NULL;
    if (!about || about->holders > 1 || (request && about->place >> 63))
        return NOT_IMPLEMENTED;
    ov_status_e status = ov_tensor_get_element_type(tensor, &type);
    if (status == OK && !can_make(type, shape.rank, shape.dims, &made))
        status = NOT_IMPLEMENTED;
    if (status == OK)
        status = make_tensor(type, shape, &made);
    if (status == OK && request) {
        size_t index = about->place / 2;
        status = about->place & 1 ? ov_infer_request_set_output_tensor_by_index(request, index, made)
                                  : ov_infer_request_set_input_tensor_by_index(request, index, made);
        if (status != OK)
            ov_tensor_free(made);
    }
    if (status == OK)
        about->grown = made;
    return status;
}

/* In memory that both sides have. */
int is_shared(const ov_tensor_t *tensor) {
    const struct tensor *about = tensor_of(tensor);
    return about && about->own && aviary_is_zerocopy(about->own);
}

int is_held(const ov_tensor_t *tensor) {
    const struct tensor *about = tensor_of(tensor);
    return about && (about->held > 0 || about->own || about->grown);
}

void let_go(ov_tensor_t *tensor) {
    pthread_mutex_lock(&requests_lock);
    struct tensor *about = tensor_of(tensor);
    ov_tensor_t *other = NULL;
    void *own = NULL;
    int last = about && about->held == 0;
    if (about && !last)
        about->held--;
    if (last)
        own = about->own, other = about->grown, about->own = NULL, about->grown = NULL;
    pthread_mutex_unlock(&requests_lock);
    if (last)
        ov_tensor_free(tensor);
    if (other)
        ov_tensor_free(other);
    if (own)
        free_own(own);
}
