/* Tensors: all element types, memory of the application's and the library's own, shapes, texts. */
#include "common.h"

static void facts(const char *what, ov_tensor_t *tensor) {
    ov_element_type_e type = DYNAMIC;
    ov_shape_t shape = {0, NULL};
    size_t elements = 0, bytes = 0;
    ov_status_e a = ov_tensor_get_element_type(tensor, &type), b = ov_tensor_get_size(tensor, &elements);
    ov_status_e c = ov_tensor_get_byte_size(tensor, &bytes), d = ov_tensor_get_shape(tensor, &shape);
    say("%s: type %d %d, elements %d %zu, bytes %d %zu, shape %d", what, a, type, b, elements, c, bytes, d);
    if (d == OK)
        say_shape(what, &shape);
}

/* What is written in the tensor's memory is there when it is asked for again. */
static void content(ov_tensor_t *tensor) {
    unsigned char *data = NULL, *again = NULL;
    size_t bytes = 0;
    NEED(ov_tensor_get_byte_size(tensor, &bytes));
    if (TOLD(ov_tensor_data(tensor, (void **)&data)) != OK || !data)
        return;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 7 + 1);
    NEED(ov_tensor_data(tensor, (void **)&again));
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = sum * 31 + again[i];
    say("content %u, the same address %d", sum, data == again);
}

static void types(void) {
    int64_t dims[3] = {3, 5, 7};
    ov_shape_t shape = {3, dims};
    static unsigned char memory[3 * 5 * 7 * 8];
    for (int type = -1; type < 28; type++) {
        ov_tensor_t *tensor = NULL;
        char what[32];
        snprintf(what, sizeof what, "type %d", type);
        if (told(what, ov_tensor_create((ov_element_type_e)type, shape, &tensor)) == OK) {
            facts(what, tensor);
            if (type != STRING)
                content(tensor);
            ov_tensor_free(tensor);
        }
        if (type == STRING || told(what, ov_tensor_create_from_host_ptr((ov_element_type_e)type, shape, memory, &tensor)) != OK)
            continue;
        void *data = NULL;
        facts(what, tensor);
        NEED(ov_tensor_data(tensor, &data));
        say("the application's memory: %d", data == memory);
        ov_tensor_free(tensor);
    }
}

static void odd_shapes(void) {
    int64_t zero[2] = {0, 4}, negative[2] = {-1, 4}, huge[2] = {1ll << 40, 1ll << 40}, large[3] = {1 << 20, 1 << 20, 1 << 10};
    ov_tensor_t *tensor = NULL;
    float memory[4] = {1, 2, 3, 4};
    if (TOLD(ov_tensor_create(F32, (ov_shape_t){0, NULL}, &tensor)) == OK) {
        facts("scalar", tensor);
        content(tensor);
        ov_tensor_free(tensor);
    }
    if (TOLD(ov_tensor_create(F32, (ov_shape_t){2, zero}, &tensor)) == OK) {
        facts("empty", tensor);
        ov_tensor_free(tensor);
    }
    TOLD(ov_tensor_create(F32, (ov_shape_t){2, negative}, &tensor));
    TOLD(ov_tensor_create(F32, (ov_shape_t){2, huge}, &tensor));
    say("large: %d", ov_tensor_create(F64, (ov_shape_t){3, large}, &tensor) != OK);
    TOLD(ov_tensor_create(F32, (ov_shape_t){0, NULL}, NULL));
    TOLD(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){0, NULL}, NULL, &tensor));
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){0, NULL}, memory, &tensor));
    facts("scalar in memory", tensor);
    ov_tensor_free(tensor);
    ov_tensor_free(NULL);
}

static void new_shapes(void) {
    int64_t dims[2] = {4, 6}, fewer[1] = {5}, other[3] = {2, 3, 4}, more[2] = {40, 60};
    ov_tensor_t *tensor = NULL;
    float memory[24] = {0};
    void *data = NULL;
    NEED(ov_tensor_create(F32, (ov_shape_t){2, dims}, &tensor));
    TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){1, fewer}));
    facts("fewer", tensor);
    TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){3, other}));
    facts("other", tensor);
    content(tensor);
    for (int i = 0; i < 3; i++) {
        TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){2, more}));
        facts("more", tensor);
        content(tensor);
        more[0] *= 3;
    }
    more[0] = 40;
    TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){1, fewer}));
    facts("fewer again", tensor);
    ov_tensor_free(tensor);
    NEED(ov_tensor_create_from_host_ptr(F32, (ov_shape_t){2, dims}, memory, &tensor));
    TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){1, fewer}));
    facts("fewer", tensor);
    TOLD(ov_tensor_set_shape(tensor, (ov_shape_t){2, more}));
    NEED(ov_tensor_data(tensor, &data));
    say("the application's memory: %d", data == memory);
    ov_tensor_free(tensor);
}

static void texts(void) {
    const char *words[4] = {"one", "", "three and a half", "vier ż 大"};
    int64_t dims[2] = {2, 2};
    ov_tensor_t *tensor = NULL;
    NEED(ov_tensor_create_from_string_array(words, 4, (ov_shape_t){2, dims}, &tensor));
    facts("texts", tensor);
    TOLD(ov_tensor_set_string_data(tensor, words, 4));
    TOLD(ov_tensor_set_string_data(tensor, words, 2));
    TOLD(ov_tensor_set_string_data(tensor, NULL, 4));
    ov_tensor_free(tensor);
    TOLD(ov_tensor_create_from_string_array(words, 3, (ov_shape_t){2, dims}, &tensor));
    TOLD(ov_tensor_create_from_string_array(NULL, 0, (ov_shape_t){2, dims}, &tensor));
}

int main(void) {
    types();
    odd_shapes();
    new_shapes();
    texts();
    return 0;
}
