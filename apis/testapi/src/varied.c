/* Functions whose arguments depend on the value of one of them. */
#include "testapi_varied.h"

#include <stdio.h>
#include <string.h>

static struct {
    int16_t level;
    uint64_t wide;
    double ratio;
    char name[200];
    ta_point points[4];
    ta_device device;
} dial;

ta_status ta_dial_control_list(int32_t request, va_list list) {
    const char *name;
    const void *points;
    void *out = NULL;
    if ((request % 2 && request != TA_DIAL_RESET) && !(out = va_arg(list, void *)))
        return TA_INVALID_VALUE;
    switch (request) {
    case TA_DIAL_RESET: memset(&dial, 0, sizeof dial); break;
    case TA_DIAL_SET_LEVEL: dial.level = (int16_t)va_arg(list, int); break;
    case TA_DIAL_GET_LEVEL: *(int16_t *)out = dial.level; break;
    case TA_DIAL_SET_WIDE: dial.wide = va_arg(list, uint64_t); break;
    case TA_DIAL_GET_WIDE: *(uint64_t *)out = dial.wide; break;
    case TA_DIAL_SET_RATIO:
    case TA_DIAL_RATIO_OF_FLOAT: dial.ratio = va_arg(list, double); break;
    case TA_DIAL_GET_RATIO: *(double *)out = dial.ratio; break;
    case TA_DIAL_SET_NAME:
        if (!(name = va_arg(list, const char *)))
            return TA_INVALID_VALUE;
        snprintf(dial.name, sizeof dial.name, "%s", name);
        break;
    case TA_DIAL_GET_NAME: *(const char **)out = dial.name; break;
    case TA_DIAL_SET_POINTS:
        if (!(points = va_arg(list, const void *)))
            return TA_INVALID_VALUE;
        memcpy(dial.points, points, sizeof dial.points);
        break;
    case TA_DIAL_SUM_POINTS:
        *(ta_point *)out = ta_point_add(ta_point_add(dial.points[0], dial.points[1]), ta_point_add(dial.points[2], dial.points[3]));
        break;
    case TA_DIAL_SET_DEVICE: dial.device = va_arg(list, ta_device); break;
    case TA_DIAL_GET_DEVICE: *(ta_device *)out = dial.device; break;
    case TA_DIAL_HIDDEN: *(int *)out = 3; break;
    default: return TA_UNSUPPORTED;
    }
    return TA_OK;
}

ta_status ta_dial_control(int32_t request, ...) {
    va_list list;
    va_start(list, request);
    ta_status status = ta_dial_control_list(request, list);
    va_end(list);
    return status;
}

void ta_dial_try(uint32_t *failed, int32_t request, ...) {
    va_list list;
    va_start(list, request);
    *failed += ta_dial_control_list(request, list) != TA_OK;
    va_end(list);
}

ta_status ta_texts_join(char *to, size_t room, size_t count, ...) {
    va_list list;
    size_t length = 0;
    if (!to || !room)
        return TA_INVALID_VALUE;
    va_start(list, count);
    for (size_t i = 0; i < count; i++) {
        const char *text = va_arg(list, const char *);
        length += (size_t)snprintf(to + length, room - length, "%s;", text ? text : "none");
        if (length >= room)
            length = room - 1;
    }
    va_end(list);
    to[length] = 0;
    return TA_OK;
}
