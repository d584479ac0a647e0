/* A plug-in that does what those for a CPU do not: it asks the program's key-value store, has errors with payloads, and maps host
 * memory. The name of its platform tells what the store has answered. */
#include <pjrt_c_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct PJRT_Error {
    const void *functions;
    PJRT_Error_Code code;
    char text[256];
};
struct PJRT_Client {
    PJRT_Client_Create_Args asked;
    char name[1024];
};

static PJRT_Error *fail(PJRT_Error_Code code, const char *message, size_t size) {
    PJRT_Error *error = calloc(1, sizeof *error);
    error->code = code;
    snprintf(error->text, sizeof error->text, "%.*s", (int)size, message);
    return error;
}
static PJRT_CallbackError failing = fail;

static void end_error(PJRT_Error_Destroy_Args *args) { free(args->error); }
static void error_message(PJRT_Error_Message_Args *args) {
    args->message = args->error->text;
    args->message_size = strlen(args->error->text);
}
static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args) {
    args->code = args->error->code;
    return NULL;
}
static PJRT_Error *initialize(PJRT_Plugin_Initialize_Args *args) { return args->struct_size ? NULL : fail(PJRT_Error_Code_UNKNOWN, "", 0); }
static PJRT_Error *attributes(PJRT_Plugin_Attributes_Args *args) {
    args->attributes = NULL;
    args->num_attributes = 0;
    return NULL;
}

static void say(PJRT_Client *client, const char *what, PJRT_Error *error, const char *value, size_t size) {
    size_t used = strlen(client->name);
    char *to = client->name + used;
    unsigned sum = 0;
    for (size_t i = 0; !error && i < size; i++)
        sum = sum * 31 + (unsigned char)value[i];
    if (error)
        snprintf(to, sizeof client->name - used, "%s: %d %s\n", what, error->code, error->text);
    else
        snprintf(to, sizeof client->name - used, "%s: %zu bytes %u\n", what, size, sum);
    free(error);
}
static void get(PJRT_Client *client, const char *key, int timeout) {
    PJRT_KeyValueGetCallback_Args args = {.struct_size = sizeof args, .key = key, .key_size = strlen(key), .timeout_in_ms = timeout,
                                          .callback_error = &failing, .user_arg = client->asked.kv_get_user_arg};
    PJRT_Error *error = client->asked.kv_get_callback(&args);
    say(client, key, error, args.value, args.value_size);
    if (!error)
        args.value_deleter_callback(args.value);
}
static void try_get(PJRT_Client *client, const char *key) {
    PJRT_KeyValueTryGetCallback_Args args = {.struct_size = sizeof args, .key = key, .key_size = strlen(key), .callback_error = &failing,
                                             .user_arg = client->asked.kv_try_get_user_arg};
    PJRT_Error *error = client->asked.kv_try_get_callback(&args);
    say(client, key, error, args.value, args.value_size);
    if (!error)
        args.value_deleter_callback(args.value);
}
static void put(PJRT_Client *client, const char *key, size_t size) {
    char *value = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        value[i] = (char)(i * 7 + size);
    PJRT_KeyValuePutCallback_Args args = {.struct_size = sizeof args, .key = key, .key_size = strlen(key), .value = value,
                                          .value_size = size, .callback_error = &failing, .user_arg = client->asked.kv_put_user_arg};
    say(client, key, client->asked.kv_put_callback(&args), value, size);
    free(value);
}
static void *put_elsewhere(void *client) {
    put(client, "elsewhere", 70000);
    return NULL;
}

static PJRT_Error *create(PJRT_Client_Create_Args *args) {
    static const char none[] = "this plug-in needs a key-value store";
    pthread_t thread;
    if (!args->kv_get_callback || !args->kv_put_callback)
        return fail(PJRT_Error_Code_FAILED_PRECONDITION, none, sizeof none - 1);
    PJRT_Client *client = calloc(1, sizeof *client);
    client->asked = *args;
    put(client, "nothing", 0);
    put(client, "small", 100);
    put(client, "refused", 5);
    get(client, "nothing", 1000);
    get(client, "small", 1000);
    get(client, "never put", 10);
    if (args->kv_try_get_callback) {
        try_get(client, "small");
        try_get(client, "never put");
    }
    if (pthread_create(&thread, NULL, put_elsewhere, client) == 0)
        pthread_join(thread, NULL);
    get(client, "elsewhere", 1000);
    args->client = client;
    return NULL;
}
static PJRT_Error *end(PJRT_Client_Destroy_Args *args) {
    put(args->client, "ended", 1);
    free(args->client);
    return NULL;
}
static PJRT_Error *name(PJRT_Client_PlatformName_Args *args) {
    args->platform_name = args->client->name;
    args->platform_name_size = strlen(args->client->name);
    return NULL;
}

static PJRT_Error *payloads(PJRT_Error_ForEachPayload_Args *args) {
    void (*visit)(const char *, size_t, const char *, size_t, void *) =
        (void (*)(const char *, size_t, const char *, size_t, void *))args->visitor;
    visit("text", 4, args->error->text, strlen(args->error->text), args->user_arg);
    visit("bytes", 5, "\0\1\2", 3, args->user_arg);
    visit("nothing", 7, NULL, 0, args->user_arg);
    visit("", 0, args->error->text, sizeof args->error->text, args->user_arg);
    return NULL;
}

/* One piece of memory at a time and client. */
static char *mapped, *mapped_end;
static PJRT_Error *map(PJRT_Client_DmaMap_Args *args) {
    static const char wrong[] = "this is mapped or no memory";
    char *data = args->data;
    if (!data || args->size == 0 || (mapped && data < mapped_end && mapped < data + args->size))
        return fail(PJRT_Error_Code_INVALID_ARGUMENT, wrong, sizeof wrong - 1);
    mapped = data;
    mapped_end = data + args->size;
    return NULL;
}
static PJRT_Error *unmap(PJRT_Client_DmaUnmap_Args *args) {
    static const char wrong[] = "this is not mapped";
    if (!mapped || mapped != args->data)
        return fail(PJRT_Error_Code_INVALID_ARGUMENT, wrong, sizeof wrong - 1);
    mapped = NULL;
    return NULL;
}

static PJRT_Api api = {
    .struct_size = PJRT_Api_STRUCT_SIZE,
    .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE, .major_version = 0, .minor_version = PJRT_API_MINOR},
    .PJRT_Error_Destroy = end_error,
    .PJRT_Error_Message = error_message,
    .PJRT_Error_GetCode = error_code,
    .PJRT_Plugin_Initialize = initialize,
    .PJRT_Plugin_Attributes = attributes,
    .PJRT_Client_Create = create,
    .PJRT_Client_Destroy = end,
    .PJRT_Client_PlatformName = name,
    .PJRT_Error_ForEachPayload = payloads,
    .PJRT_Client_DmaMap = map,
    .PJRT_Client_DmaUnmap = unmap,
};
const PJRT_Api *GetPjrtApi(void);
__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) { return &api; }
