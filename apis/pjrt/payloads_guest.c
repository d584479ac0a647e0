/* Payloads of errors, which the program visits one by one. */
#include "pjrt_types.h"
#include <aviary/guest.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 16 };
typedef void visitor_function(const char *name, size_t name_size, const char *value, size_t value_size, void *user_arg);

int is_made(const PJRT_Error *error);

PJRT_Error *visit_payloads(const PJRT_Error *error, void *visitor, void *user_arg) {
    char *list = error && visitor && !is_made(error) ? malloc(ROOM) : NULL;
    size_t used = 0, at = 0;
    struct aviary_pjrt_payload payload;
    if (!list || aviary_pjrt_payloads(error, list, ROOM, &used) != 0 || used > ROOM)
        used = 0;
    while (used - at >= sizeof payload) {
        memcpy(&payload, list + at, sizeof payload);
        at += sizeof payload;
        if (payload.name_size > used - at || payload.value_size > used - at - payload.name_size)
            break;
        ((visitor_function *)visitor)(list + at, payload.name_size, list + at + payload.name_size, payload.value_size, user_arg);
        at += payload.name_size + payload.value_size;
    }
    free(list);
    return NULL;
}
