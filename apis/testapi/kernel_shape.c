/* Asks the library once what a new kernel's arguments are; the guest through its own stubs, the server directly. */
#include "testapi_types.h"
#include <aviary.h>
void learn_kernel(ta_kernel kernel) {
    struct kernel_shape *shape = metadata(struct kernel_shape, kernel);
    ta_status (*argument_count)(ta_kernel, uint32_t *) = aviary_function("ta_kernel_argument_count");
    ta_status (*argument)(ta_kernel, uint32_t, uint32_t *, size_t *) = aviary_function("ta_kernel_argument");
    uint32_t count = 0;
    if (!shape || !argument_count || !argument)
        return;
    if (argument_count(kernel, &count) != TA_OK || count > TA_KERNEL_ARGUMENTS)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t is_buffer = 0;
        size_t bytes = 0;
        if (argument(kernel, i, &is_buffer, &bytes) != TA_OK)
            return;
        shape->is_buffer[i] = is_buffer != 0;
        shape->bytes[i] = (uint32_t)bytes;
    }
    shape->count = count;
    shape->known = 1;
}
