/* Large blocking transfers of odd sizes, with and without an event. */
#include "common.h"

int main(void) {
    struct device d = open_device(0);
    enum { BYTES = (40 << 20) + 12345 };
    unsigned char *from = malloc(BYTES), *to = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) from[i] = i * 31 + (i >> 12);
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, BYTES, NULL);
    size_t sizes[] = {BYTES, 8 << 20, (8 << 20) + 1, (12 << 20) + 65536, (12 << 20) + 65535, 20 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t offset = BYTES - sizes[i];
        cl_event event;
        MUST(clEnqueueWriteBuffer(d.queue, buffer, CL_TRUE, offset, sizes[i], from, 0, NULL, i % 2 ? &event : NULL));
        if (i % 2) { cl_command_type t; MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof t, &t, NULL)); printf("%x ", t); clReleaseEvent(event); }
        memset(to, 0, BYTES);
        MUST(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, offset, sizes[i], to, 0, NULL, i % 2 ? &event : NULL));
        if (i % 2) { cl_command_type t; MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof t, &t, NULL)); printf("%x ", t); clReleaseEvent(event); }
        printf("%zu: same %d, rest untouched %d\n", sizes[i], memcmp(from, to, sizes[i]) == 0, sizes[i] == BYTES || to[sizes[i]] == 0);
    }
    printf("beyond the end %d %d\n", clEnqueueWriteBuffer(d.queue, buffer, CL_TRUE, 1, BYTES, from, 0, NULL, NULL),
           clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 1, BYTES, to, 0, NULL, NULL));
    cl_mem locked = buffer_of(&d, CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS, BYTES, NULL);
    printf("no access %d %d\n", clEnqueueWriteBuffer(d.queue, locked, CL_TRUE, 0, BYTES, from, 0, NULL, NULL),
           clEnqueueReadBuffer(d.queue, locked, CL_TRUE, 0, BYTES, to, 0, NULL, NULL));
    clReleaseMemObject(buffer), clReleaseMemObject(locked);
    close_device(&d);
    return 0;
}
