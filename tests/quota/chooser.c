/* Devices as a tenant sees them, and its limits on those that it names itself.
 *   chooser NAME...
 * prints the devices of the list, and for each name whether memory can be had on such a device and on a part of it; then whether
 * some can be reserved on the accelerator, and whether that gets work. */
#include <stdint.h>
#include <stdio.h>

#include "testapi.h"

#define MOST 8

static ta_status memory_on(ta_device device) {
    ta_buffer buffer;
    ta_status status = ta_buffer_create(device, 16, &buffer);
    return status == TA_OK ? ta_buffer_destroy(buffer) : status;
}

int main(int count, char **names) {
    ta_device all[MOST], device, part;
    uint32_t there = 0, listed = 0;
    if (ta_device_list(0, NULL, &there) != TA_OK || ta_device_list(MOST, all, &listed) != TA_OK || there != listed)
        return 2;
    for (uint32_t at = 0; at < listed && at < MOST; at++) {
        char name[64] = "";
        if (ta_device_query(all[at], TA_DEVICE_NAME, sizeof name, name, NULL) != TA_OK)
            return 2;
        printf("%s: %s\n", name, ta_error_name(memory_on(all[at])));
    }
    for (int at = 1; at < count; at++) {
        if (ta_device_open(names[at], &device) != TA_OK)
            return 2;
        intptr_t properties[] = {TA_PROPERTY_PARENT, (intptr_t)device, 0};
        if (ta_device_create(properties, &part) != TA_OK)
            return 2;
        printf("opened %s: %s, ", names[at], ta_error_name(memory_on(device)));
        printf("a part: %s\n", ta_error_name(memory_on(part)));
    }
    printf("reserved: %s\n", ta_error_name(ta_reserve(16)));
    /* The next call tells. */
    ta_accelerator_submit(1, 1000);
    printf("worked: %d\n", (int)ta_noop());
    return 0;
}
