/* The devices for `aviary devices`, and which processes have the memory of TESTAPI_MEMORY, for the node. TESTAPI_HEALTH of its process: `hang`, `crash`, or the name of a device that is lost. */
#include "testapi_types.h"
#include <aviary/server.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LISTED = 16 };

void aviary_devices(void (*tell)(void *context, const struct aviary_device *device), void *context) {
    ta_status (*list)(uint32_t, ta_device *, uint32_t *) = (ta_status(*)(uint32_t, ta_device *, uint32_t *))aviary_function("ta_device_list");
    ta_status (*describe)(ta_device, ta_device_info *) = (ta_status(*)(ta_device, ta_device_info *))aviary_function("ta_device_describe");
    const char *health = getenv("TESTAPI_HEALTH");
    ta_device devices[MOST_LISTED];
    uint32_t count = 0;
    if (health && strcmp(health, "hang") == 0)
        while (1)
            pause();
    if (health && strcmp(health, "crash") == 0)
        abort();
    if (!list || !describe || list(MOST_LISTED, devices, &count) != TA_OK)
        return;
    for (uint32_t at = 0; at < count && at < MOST_LISTED; at++) {
        ta_device_info info = {0};
        if (describe(devices[at], &info) != TA_OK || !info.name)
            continue;
        struct aviary_device device = {.name = info.name, .library = "1"};
        if (health && strcmp(health, info.name) == 0)
            device.unhealthy = "the device is lost";
        tell(context, &device);
    }
    struct aviary_device accelerator = {.name = "testapi accelerator", .library = "1"};
    tell(context, &accelerator);
}

/* All of that memory is of one device. */
static const char LIMITED_DEVICE[] = "crowded";

struct telling {
    void (*tell)(void *context, const struct aviary_holder *holder);
    void *context;
};

static void tell_holder(void *context, uint64_t process, uint64_t bytes) {
    const struct telling *telling = context;
    telling->tell(telling->context, &(struct aviary_holder){LIMITED_DEVICE, process, bytes});
}

void aviary_holders(void (*tell)(void *context, const struct aviary_holder *holder), void *context) {
    void (*list)(void (*)(void *, uint64_t, uint64_t), void *) =
        (void (*)(void (*)(void *, uint64_t, uint64_t), void *))aviary_function("ta_memory_holders");
    struct telling telling = {tell, context};
    if (!list || !getenv("TESTAPI_MEMORY"))
        return;
    tell(context, &(struct aviary_holder){.device = LIMITED_DEVICE});
    list(tell_holder, &telling);
}
