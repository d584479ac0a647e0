/* The key-value store of the guest's program, as the plug-in asks for it. */
#include "pjrt_types.h"
#include <aviary/server.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_ROOM = 4096, MOST_ROOM = 64 << 20, TRIES = 4 };

struct store {
    aviary_pjrt_store ask;
    void *context;
};

static void end_value(char *value) { free(value); }

/* What the store says; `value` gets it in memory of its own, if it is not NULL. */
static PJRT_Error *ask(const struct store *store, int what, const char *key, size_t key_size, const char *put, size_t put_size, int timeout,
                       const PJRT_CallbackError *fail, char **value, size_t *value_size) {
    size_t room = USUAL_ROOM, size = 0;
    /* Another process may put a longer value there meanwhile. */
    for (int i = 0; i < TRIES && room <= MOST_ROOM; i++, room = size) {
        char *to = malloc(room);
        if (!to)
            break;
        int code = store->ask(what, key, key_size, put, put_size, timeout, to, room, &size, store->context);
        if (code) {
            /* A guest library that is gone has answered nothing. */
            size = size <= room ? size : 0;
            PJRT_Error *error = (*fail)((PJRT_Error_Code)code, to, size);
            free(to);
            return error;
        }
        if (size <= room && value) {
            *value = to;
            *value_size = size;
            return NULL;
        }
        free(to);
        if (size <= room)
            return NULL;
    }
    static const char text[] = "Aviary does not carry a value of this size";
    return (*fail)(PJRT_Error_Code_RESOURCE_EXHAUSTED, text, sizeof text - 1);
}
static PJRT_Error *get(PJRT_KeyValueGetCallback_Args *args) {
    args->value_deleter_callback = end_value;
    return ask(args->user_arg, AVIARY_PJRT_GET, args->key, args->key_size, NULL, 0, args->timeout_in_ms, args->callback_error, &args->value,
               &args->value_size);
}
static PJRT_Error *try_get(PJRT_KeyValueTryGetCallback_Args *args) {
    args->value_deleter_callback = end_value;
    return ask(args->user_arg, AVIARY_PJRT_TRY_GET, args->key, args->key_size, NULL, 0, 0, args->callback_error, &args->value,
               &args->value_size);
}
static PJRT_Error *put(PJRT_KeyValuePutCallback_Args *args) {
    return ask(args->user_arg, AVIARY_PJRT_PUT, args->key, args->key_size, args->value, args->value_size, 0, args->callback_error, NULL, NULL);
}

static PJRT_Error *create(const PJRT_NamedValue *options, size_t count, uint32_t has, aviary_pjrt_store ask_guest, void *context,
                          PJRT_Client **client) {
    const PJRT_Api *(*api)(void) = (const PJRT_Api *(*)(void))aviary_function("GetPjrtApi");
    struct store *store = malloc(sizeof *store);
    if (!store)
        abort();
    *store = (struct store){ask_guest, context};
    PJRT_Client_Create_Args args = {
        .struct_size = PJRT_Client_Create_Args_STRUCT_SIZE,
        .create_options = options,
        .num_options = count,
        .kv_get_callback = ask_guest && has & 1u << AVIARY_PJRT_GET ? get : NULL,
        .kv_get_user_arg = store,
        .kv_put_callback = ask_guest && has & 1u << AVIARY_PJRT_PUT ? put : NULL,
        .kv_put_user_arg = store,
        .kv_try_get_callback = ask_guest && has & 1u << AVIARY_PJRT_TRY_GET ? try_get : NULL,
        .kv_try_get_user_arg = store,
    };
    PJRT_Error *error = api()->PJRT_Client_Create(&args);
    *client = error ? NULL : args.client;
    return error;
}
void *creator(void) { return (void *)create; }
