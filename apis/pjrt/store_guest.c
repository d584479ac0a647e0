/* The program's key-value store, which the plug-in asks by callbacks, as one function that tells all of it. */
#include "pjrt_types.h"
#include "known.h"
#include <aviary/guest.h>
#include <stdlib.h>
#include <string.h>

struct store {
    PJRT_KeyValueGetCallback get;
    PJRT_KeyValuePutCallback put;
    PJRT_KeyValueTryGetCallback try_get;
    void *get_arg, *put_arg, *try_get_arg;
};

/* How the program makes the error that it answers. */
static PJRT_Error *refuse(PJRT_Error_Code code, const char *message, size_t size) {
    char *text = message ? strndup(message, size) : NULL;
    PJRT_Error *error = error_of(code, text ? text : "");
    free(text);
    return error;
}
static PJRT_CallbackError refuser = refuse;

/* Code and text of an error, which ends. */
static int tell_failure(PJRT_Error *error, char *to, size_t room, size_t *size) {
    const PJRT_Api *api = GetPjrtApi();
    PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
    PJRT_Error_Message_Args text = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
    PJRT_Error_Destroy_Args end = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    if (api->PJRT_Error_GetCode(&code) || code.code <= 0)
        code.code = PJRT_Error_Code_UNKNOWN;
    api->PJRT_Error_Message(&text);
    *size = text.message && text.message_size < room ? text.message_size : text.message ? room : 0;
    memcpy(to, text.message ? text.message : "", *size);
    api->PJRT_Error_Destroy(&end);
    return (int)code.code;
}
/* A value, which ends. One that is longer than there is room for is asked again. */
static int tell_value(char *value, size_t bytes, void (*end)(char *), char *to, size_t room, size_t *size) {
    *size = value ? bytes : 0;
    if (*size <= room)
        memcpy(to, value ? value : "", *size);
    if (value && end)
        end(value);
    return 0;
}
static int tell_store(int what, const char *key, size_t key_size, const char *value, size_t value_size, int timeout_in_ms, char *to,
                      size_t room, size_t *size, void *context) {
    const struct store *store = context;
    PJRT_Error *error = NULL;
    *size = 0;
    if (what == AVIARY_PJRT_GET && store->get) {
        PJRT_KeyValueGetCallback_Args args = {.struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE,
                                              .key = key,
                                              .key_size = key_size,
                                              .timeout_in_ms = timeout_in_ms,
                                              .callback_error = &refuser,
                                              .user_arg = store->get_arg};
        error = store->get(&args);
        if (!error)
            return tell_value(args.value, args.value_size, args.value_deleter_callback, to, room, size);
    } else if (what == AVIARY_PJRT_TRY_GET && store->try_get) {
        PJRT_KeyValueTryGetCallback_Args args = {.struct_size = PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE,
                                                 .key = key,
                                                 .key_size = key_size,
                                                 .callback_error = &refuser,
                                                 .user_arg = store->try_get_arg};
        error = store->try_get(&args);
        if (!error)
            return tell_value(args.value, args.value_size, args.value_deleter_callback, to, room, size);
    } else if (what == AVIARY_PJRT_PUT && store->put) {
        PJRT_KeyValuePutCallback_Args args = {.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE,
                                              .key = key,
                                              .key_size = key_size,
                                              .value = value,
                                              .value_size = value_size,
                                              .callback_error = &refuser,
                                              .user_arg = store->put_arg};
        error = store->put(&args);
    } else {
        return PJRT_Error_Code_UNIMPLEMENTED;
    }
    return error ? tell_failure(error, to, room, size) : 0;
}

PJRT_Error *create_with_store(const PJRT_NamedValue *options, size_t count, PJRT_KeyValueGetCallback get, void *get_arg,
                              PJRT_KeyValuePutCallback put, void *put_arg, PJRT_KeyValueTryGetCallback try_get, void *try_get_arg,
                              PJRT_Client **client) {
    struct store *store = malloc(sizeof *store);
    if (!store)
        return made(0);
    *store = (struct store){get, put, try_get, get_arg, put_arg, try_get_arg};
    uint32_t has = (get ? 1u << AVIARY_PJRT_GET : 0) | (put ? 1u << AVIARY_PJRT_PUT : 0) | (try_get ? 1u << AVIARY_PJRT_TRY_GET : 0);
    /* The store stays: the plug-in may ask as long as the session. */
    return aviary_pjrt_create(options, count, has, tell_store, store, client);
}
