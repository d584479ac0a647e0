/* Asks the library once what a new kernel's arguments are. */
void learn_kernel(ta_kernel kernel) {
    struct kernel_shape *shape = metadata(struct kernel_shape, kernel);
    uint32_t count = 0;
    if (!shape || ta_kernel_argument_count(kernel, &count) != TA_OK || count > TA_KERNEL_ARGUMENTS)
        return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t is_buffer = 0;
        size_t bytes = 0;
        if (ta_kernel_argument(kernel, i, &is_buffer, &bytes) != TA_OK)
            return;
        shape->is_buffer[i] = is_buffer != 0;
        shape->bytes[i] = (uint32_t)bytes;
    }
    shape->count = count;
    shape->known = 1;
}
