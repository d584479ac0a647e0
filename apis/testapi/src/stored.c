/* Objects on memory of the caller's, which they hand back when they end. */
#include "testapi_stored.h"

#include <stdlib.h>

struct ta_store_object {
    uint8_t *data;
    size_t bytes;
    ta_store_end end;
    void *context;
};

ta_status ta_store_new(ta_store *store, void *data, size_t bytes, ta_store_end end, void *context) {
    if (!store || !data || !bytes)
        return TA_INVALID_VALUE;
    if (!(*store = malloc(sizeof **store)))
        return TA_OUT_OF_MEMORY;
    **store = (struct ta_store_object){data, bytes, end, context};
    return TA_OK;
}

ta_status ta_store_add(ta_store store, uint8_t number) {
    if (!store)
        return TA_INVALID_VALUE;
    for (size_t i = 0; i < store->bytes; i++)
        store->data[i] = (uint8_t)(store->data[i] + number);
    return TA_OK;
}

ta_status ta_store_drop(ta_store store) {
    if (!store)
        return TA_INVALID_VALUE;
    if (store->end)
        store->end(store->data, store->bytes, store->context);
    free(store);
    return TA_OK;
}
