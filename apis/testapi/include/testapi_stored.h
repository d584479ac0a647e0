/*
 * Objects on memory of the caller's, which they hand back when they end.
 */
#ifndef TESTAPI_STORED_H
#define TESTAPI_STORED_H

#include "testapi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ta_store_object *ta_store;
/* Called when a store ends, with what it was made of. */
typedef void (*ta_store_end)(void *data, size_t bytes, void *context);
/* A store that uses the caller's memory until it ends. Without memory it fails, and nothing is called. */
ta_status ta_store_new(ta_store *store, void *data, size_t bytes, ta_store_end end, void *context);
/* Adds a number to each byte. */
ta_status ta_store_add(ta_store store, uint8_t number);
/* Ends it. */
ta_status ta_store_drop(ta_store store);

#ifdef __cplusplus
}
#endif

#endif
