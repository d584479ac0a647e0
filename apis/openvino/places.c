/* Places of a request, inputs and outputs, and the tensors that it holds there. */
#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "openvino_types.h"
#include "requests.h"

pthread_mutex_t requests_lock = PTHREAD_MUTEX_INITIALIZER;

/* Places: twice the index, and one more for outputs; of ports that are not known by their index a hash of the name. */
#define BY_NAME (1ull << 63)
/* Of a side, known by their indices. */
enum { PORTS = sizeof((struct told_ports *)0)->names[0] / sizeof(uint64_t) };

struct request *request_of(const ov_infer_request_t *request) {
    return request ? metadata(struct request, (ov_infer_request_t *)(uintptr_t)request) : NULL;
}

struct tensor *tensor_of(const ov_tensor_t *tensor) {
    return tensor ? metadata(struct tensor, (ov_tensor_t *)(uintptr_t)tensor) : NULL;
}

/* As in server.c. */
static uint64_t hash(const char *name) {
    uint64_t value = 14695981039346656037u;
    for (; name && *name; name++)
        value = (value ^ (unsigned char)*name) * 1099511628211u;
    return name ? value | 1 : 0;
}

void note_port(ov_output_port_t *port, uint32_t side, uint64_t index, const char *name) {
    struct port *about = port ? metadata(struct port, port) : NULL;
    if (about)
        *about = (struct port){hash(name), side, (uint32_t)index};
}

void note_const_port(ov_output_const_port_t *port, uint32_t side, uint64_t index, const char *name) {
    struct port *about = port ? metadata(struct port, port) : NULL;
    if (about)
        *about = (struct port){hash(name), side, (uint32_t)index};
}

void note_request(ov_infer_request_t *request, const ov_compiled_model_t *model) {
    struct request *about = request_of(request);
    const struct told_ports *told = metadata(struct told_ports, (ov_compiled_model_t *)(uintptr_t)model);
    if (about && told) {
        about->ports = *told;
        about->model = model;
    }
}

uint64_t input_place(uint64_t index) {
    return 2 * index;
}

uint64_t output_place(uint64_t index) {
    return 2 * index + 1;
}

/* Of a model with one input or output; with more it is an error of the library's. */
uint64_t only_place(const ov_infer_request_t *request, uint32_t side) {
    const struct request *about = request_of(request);
    return about && about->ports.count[side] == 1 ? side : BY_NAME;
}

/* Of a name that is none of the first names of ports: two places of one tensor would be two tensors here. */
int is_other_name(uint64_t place) {
    return place & BY_NAME && place != BY_NAME;
}

/* `sides`: 1 for inputs, 2 for outputs, 3 for both. */
static uint64_t place_of_name(const struct request *about, uint64_t name, uint32_t sides) {
    for (uint32_t side = 0; about && name && side < 2; side++)
        for (uint32_t i = 0; sides >> side & 1 && i < about->ports.count[side] && i < PORTS; i++)
            if (about->ports.names[side][i] == name)
                return 2 * i + side;
    return about ? BY_NAME | name : BY_NAME;
}

static uint64_t place_of_first_name(const struct request *about, const ov_output_const_port_t *port, uint32_t sides) {
    char *first = NULL;
    uint64_t place = ov_port_get_any_name(port, &first) == OK ? place_of_name(about, hash(first), sides) : BY_NAME | 1;
    ov_free(first);
    return place;
}

/* The compiled model knows all names. Asked once for each. */
static uint64_t place_of_other_name(struct request *about, const char *name, uint64_t place) {
    ov_output_const_port_t *port = NULL;
    pthread_mutex_lock(&requests_lock);
    struct other_name *known = about->others;
    while (known && known->name != place)
        known = known->next;
    uint64_t found = known ? known->place : place;
    pthread_mutex_unlock(&requests_lock);
    if (known)
        return found;
    if (ov_compiled_model_input_by_name(about->model, name, &port) == OK)
        found = place_of_first_name(about, port, 1);
    else if (ov_compiled_model_output_by_name(about->model, name, &port) == OK)
        found = place_of_first_name(about, port, 2);
    ov_output_const_port_free(port);
    struct other_name *made = calloc(1, sizeof *made);
    if (made) {
        pthread_mutex_lock(&requests_lock);
        *made = (struct other_name){about->others, place, found};
        about->others = made;
        pthread_mutex_unlock(&requests_lock);
    }
    return found;
}

uint64_t named_place(const ov_infer_request_t *request, const char *name) {
    struct request *about = request_of(request);
    uint64_t place = place_of_name(about, hash(name), 3);
    return is_other_name(place) ? place_of_other_name(about, name, place) : place;
}

uint64_t port_place(const ov_infer_request_t *request, const ov_output_port_t *port) {
    const struct port *about = metadata(struct port, (ov_output_port_t *)(uintptr_t)port);
    if (!about)
        return BY_NAME;
    return about->index ? 2 * (uint64_t)(about->index - 1) + about->side - 1 : place_of_name(request_of(request), about->name, about->side);
}

uint64_t const_port_place(const ov_infer_request_t *request, const ov_output_const_port_t *port) {
    const struct port *about = metadata(struct port, (ov_output_const_port_t *)(uintptr_t)port);
    if (!about)
        return BY_NAME;
    if (about->index)
        return 2 * (uint64_t)(about->index - 1) + about->side - 1;
    uint64_t place = place_of_name(request_of(request), about->name, about->side);
    return is_other_name(place) ? place_of_first_name(request_of(request), port, about->side) : place;
}

ov_status_e refuse_other_name(void) {
    aviary_log("OpenVINO: a tensor of a request was asked for or set by a name that no input or output is known to have");
    return NOT_IMPLEMENTED;
}

static struct held *find(const struct request *about, uint64_t place) {
    struct held *held = about ? about->held : NULL;
    while (held && held->place != place)
        held = held->next;
    return held;
}

/* An output keeps its memory if its shape is fixed. */
static int is_steady(const struct request *about, uint64_t place) {
    return about && !(place & BY_NAME) && place / 2 < PORTS && about->ports.fixed[place & 1] >> place / 2 & 1;
}

static int is_given(const struct request *about, uint64_t place) {
    const struct held *held = find(about, place);
    if (!about || place & BY_NAME)
        return 0;
    return held && held->tensor ? is_steady(about, place) || !(place & 1) : is_steady(about, place) && !(held && held->tried);
}

int holds(const ov_infer_request_t *request, uint64_t place, ov_tensor_t **to) {
    pthread_mutex_lock(&requests_lock);
    int given = to && is_given(request_of(request), place);
    pthread_mutex_unlock(&requests_lock);
    return given;
}

/* The place, made if there is none. */
static struct held *place_in(struct request *about, uint64_t place) {
    struct held *held = find(about, place);
    if (!held && about && (held = calloc(1, sizeof *held))) {
        *held = (struct held){.next = about->held, .place = place};
        about->held = held;
    }
    return held;
}

/* Natively each is a new object that stands for the same tensor; here it is the same one, once more. */
static ov_tensor_t *once_more(const ov_infer_request_t *request, uint64_t place, int *tried) {
    pthread_mutex_lock(&requests_lock);
    struct held *held = place_in(request_of(request), place);
    struct tensor *tensor = held ? tensor_of(held->tensor) : NULL;
    ov_tensor_t *given = tensor ? held->tensor : NULL;
    *tried = !held || held->tried;
    if (tensor)
        tensor->held++;
    else if (held)
        held->tried = 1;
    pthread_mutex_unlock(&requests_lock);
    return given;
}

/* A tensor in memory that both sides have, with the content of this one; NULL if that is not possible. */
static ov_tensor_t *twin(ov_tensor_t *tensor) {
    ov_element_type_e type = DYNAMIC;
    ov_shape_t shape = {0, NULL};
    ov_tensor_t *made = NULL;
    void *from = NULL, *to = NULL;
    size_t bytes = 0;
    if (ov_tensor_get_element_type(tensor, &type) != OK || ov_tensor_get_byte_size(tensor, &bytes) != OK)
        return NULL;
    /* A tensor without dimensions leaves the shape as it is. */
    ov_tensor_get_shape(tensor, &shape);
    int same = can_make(type, shape.rank, shape.dims, &made) && shape_bytes(type, shape.rank, shape.dims) == bytes;
    if (same && make_tensor(type, shape, &made) == OK) {
        same = is_shared(made) && ov_tensor_data(tensor, &from) == OK && ov_tensor_data(made, &to) == OK;
        if (same)
            memcpy(to, from, bytes);
        else
            ov_tensor_free(made);
    } else
        same = 0;
    end_shape(&shape);
    return same ? made : NULL;
}

/* The library's own tensor gives way to one in shared memory, so that inferences copy nothing. */
ov_status_e give_held(ov_infer_request_t *request, uint64_t place, ov_tensor_t **to) {
    int tried = 0;
    ov_tensor_t *given = once_more(request, place, &tried);
    size_t index = place / 2;
    if (!given) {
        ov_status_e status = place & 1 ? ov_infer_request_get_output_tensor_by_index(request, index, &given)
                                       : ov_infer_request_get_input_tensor_by_index(request, index, &given);
        if (status != OK)
            return status;
        ov_tensor_t *made = tried ? NULL : twin(given);
        if (made) {
            status = place & 1 ? ov_infer_request_set_output_tensor_by_index(request, index, made)
                               : ov_infer_request_set_input_tensor_by_index(request, index, made);
            ov_tensor_free(status == OK ? given : made);
            given = status == OK ? made : given;
        }
    }
    *to = given;
    return OK;
}

/* Returns the tensor that was there before. */
static ov_tensor_t *hold(const ov_infer_request_t *request, uint64_t place, ov_tensor_t *tensor) {
    struct request *about = request_of(request);
    struct held *held = place_in(about, place);
    struct tensor *facts = tensor_of(tensor);
    if (!facts || !held)
        return NULL;
    ov_tensor_t *before = held->tensor;
    struct tensor *left = tensor_of(before);
    if (left)
        left->holders--;
    held->tensor = tensor;
    facts->held++;
    facts->holders++;
    facts->request = request;
    facts->place = place;
    return before;
}

void hold_set(const ov_infer_request_t *request, uint64_t place, const ov_tensor_t *tensor) {
    pthread_mutex_lock(&requests_lock);
    ov_tensor_t *before = hold(request, place, (ov_tensor_t *)(uintptr_t)tensor);
    struct tensor *facts = tensor_of(tensor);
    /* An inference changes the shape of such an output, and moves its memory unless that is the application's. */
    if (facts && !facts->own && !facts->host && (place & 1 || place & BY_NAME) && !is_steady(request_of(request), place))
        facts->varies = 1, facts->data = NULL;
    pthread_mutex_unlock(&requests_lock);
    if (before)
        ov_tensor_free(before);
}

void hold_got(const ov_infer_request_t *request, uint64_t place, ov_tensor_t **tensor) {
    if (!tensor || !*tensor)
        return;
    pthread_mutex_lock(&requests_lock);
    struct tensor *facts = tensor_of(*tensor);
    ov_tensor_t *before = hold(request, place, *tensor);
    if (facts && !is_steady(request_of(request), place))
        facts->varies = place & 1 ? 1 : 0;
    pthread_mutex_unlock(&requests_lock);
    if (before)
        ov_tensor_free(before);
}

/* What the request holds, when it ends. */
void release_held(struct held *held) {
    while (held) {
        struct held *next = held->next;
        struct tensor *left = tensor_of(held->tensor);
        if (left)
            left->holders--;
        if (left)
            ov_tensor_free(held->tensor);
        free(held);
        held = next;
    }
}

void release_names(struct other_name *names) {
    while (names) {
        struct other_name *next = names->next;
        free(names);
        names = next;
    }
}
