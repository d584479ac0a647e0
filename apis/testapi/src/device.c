#include <stdlib.h>
#include <string.h>

#include "object.h"

ta_status ta_device_open(const char *name, ta_device *device) {
    if (!name || !device)
        return TA_INVALID_VALUE;
    struct ta_device_st *d = object_new(KIND_DEVICE, sizeof *d);
    if (!d)
        return TA_OUT_OF_MEMORY;
    strncpy(d->name, name, sizeof d->name - 1);
    *device = d;
    return TA_OK;
}

ta_status ta_device_close(ta_device device) {
    bool found;
    free(object_release(device, KIND_DEVICE, &found));
    return found ? TA_OK : TA_INVALID_DEVICE;
}
