/* What the plug-in tells of an error by names, one behind the other. */
#include "pjrt_types.h"
#include <aviary/server.h>
#include <string.h>

struct list {
    char *to;
    size_t room, used;
};

/* One for which there is no room is left out. */
static void add(const char *name, size_t name_size, const char *value, size_t value_size, void *user_arg) {
    struct list *list = user_arg;
    const struct aviary_pjrt_payload payload = {name_size, value_size};
    size_t left = list->room - list->used;
    if (left < sizeof payload || name_size > left - sizeof payload || value_size > left - sizeof payload - name_size)
        return;
    char *to = list->to + list->used;
    memcpy(to, &payload, sizeof payload);
    if (name_size)
        memcpy(to + sizeof payload, name, name_size);
    if (value_size)
        memcpy(to + sizeof payload + name_size, value, value_size);
    list->used += sizeof payload + name_size + value_size;
}
static int tell_payloads(const PJRT_Error *error, char *to, size_t room, size_t *used) {
    const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))aviary_function("GetPjrtApi");
    const PJRT_Api *api = get ? get() : NULL;
    struct list list = {to, room, 0};
    PJRT_Error_ForEachPayload_Args args = {.struct_size = PJRT_Error_ForEachPayload_Args_STRUCT_SIZE,
                                           .error = error,
                                           .visitor = (void *)add,
                                           .user_arg = &list};
    const size_t end = offsetof(PJRT_Api, PJRT_Error_ForEachPayload) + sizeof(void *);
    *used = 0;
    if (!error || !to || !api || api->struct_size < end || !api->PJRT_Error_ForEachPayload)
        return 1;
    PJRT_Error *failed = api->PJRT_Error_ForEachPayload(&args);
    PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = failed};
    if (failed)
        api->PJRT_Error_Destroy(&destroy);
    *used = list.used;
    return 0;
}
void *payload_teller(void) { return (void *)tell_payloads; }
