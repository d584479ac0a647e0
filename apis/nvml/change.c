/* Functions that change a device: those that the tenant's `privileged` names. */
#include "nvml_server.h"
#include <aviary/server.h>

int nvml_may_change(const char *function) {
    return aviary_privileged(function);
}
