/* Functions reached through pointers. */
#include <string.h>

#include "testapi.h"

static int32_t multiply(int32_t a, int32_t b) {
    return (int32_t)((uint32_t)a * (uint32_t)b);
}

static const ta_operations operations = {
    .size = sizeof operations,
    .ta_add = ta_add,
    .ta_noop = ta_noop,
    .multiply = multiply,
    .fill = ta_buffer_fill,
};

const ta_operations *ta_get_operations(void) {
    return &operations;
}

static int32_t square(int32_t v) {
    return multiply(v, v);
}

void *ta_get_function(const char *name) {
    if (!name)
        return NULL;
    if (strcmp(name, "ta_extension_square") == 0)
        return (void *)square;
    if (strcmp(name, "ta_add") == 0)
        return (void *)ta_add;
    return NULL;
}
