/* Shared by the guest's files about requests. */
#ifndef AVIARY_OPENVINO_REQUESTS_H
#define AVIARY_OPENVINO_REQUESTS_H

#include <pthread.h>

#include "openvino_types.h"

struct held {
    struct held *next;
    uint64_t place;
    ov_tensor_t *tensor;
    /* The library's own tensor was asked for, to be replaced. */
    int tried;
};

/* What a name means that is not the first one of a port. */
struct other_name {
    struct other_name *next;
    uint64_t name, place;
};

/* Guards what is known of tensors and requests. */
extern pthread_mutex_t requests_lock;

uint64_t shape_bytes(uint32_t type, int64_t rank, const int64_t *dims);
int can_make(uint32_t type, int64_t rank, const int64_t *dims, ov_tensor_t **to);
ov_status_e make_tensor(ov_element_type_e type, ov_shape_t shape, ov_tensor_t **to);
ov_status_e end_shape(ov_shape_t *shape);
struct request *request_of(const ov_infer_request_t *request);
struct tensor *tensor_of(const ov_tensor_t *tensor);
int is_shared(const ov_tensor_t *tensor);
void release_held(struct held *held);
void release_names(struct other_name *names);

#endif
