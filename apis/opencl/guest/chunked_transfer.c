/* Large blocking transfers to and from memory that only the API server reaches.
 *
 * The bytes go through shared memory. In one piece they would cross it twice, one copy after the other,
 * through pages that are new for every transfer. In parts the same few pages serve all of them, warm in
 * the caches, and of a write the API server hands one part to the vendor while the next is on its way. */
#include "guest.h"

enum { PART = 4 << 20, FIRST_PART = 64 << 10 };

/* The parts between the first, which shows whether the vendor accepts the transfer, and the last, which
 * reports what went wrong since, need no answer. */
static _Thread_local int between;

int opencl_within_chunks(void) {
    return between;
}

int opencl_is_chunked(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t size,
                         const void *host, int wants_event) {
    const struct opencl_object *on = object_of(queue), *buffer = object_of(memory);
    return blocking && host && size >= 2 * PART && on && on->in_order && !(wants_event && on->profiled) && buffer
           && buffer->plain && is_inside(buffer, offset, size) && !aviary_is_shared(host, size);
}

cl_int opencl_write_chunked(cl_command_queue queue, cl_mem memory, size_t offset, size_t size, const void *from,
                             cl_uint events, const cl_event *wait_list, cl_event *event) {
    const char *next = from;
    size_t left = size - FIRST_PART;
    cl_int status = clEnqueueWriteBuffer(queue, memory, CL_TRUE, offset, FIRST_PART, next, events, wait_list, NULL);
    if (status != CL_SUCCESS)
        return status;
    for (next += FIRST_PART, offset += FIRST_PART; left > PART; next += PART, offset += PART, left -= PART) {
        between = 1;
        status = clEnqueueWriteBuffer(queue, memory, CL_TRUE, offset, PART, next, 0, NULL, NULL);
        between = 0;
        if (status != CL_SUCCESS)
            return status;
    }
    return clEnqueueWriteBuffer(queue, memory, CL_TRUE, offset, left, next, 0, NULL, event);
}

cl_int opencl_read_chunked(cl_command_queue queue, cl_mem memory, size_t offset, size_t size, void *to, cl_uint events,
                            const cl_event *wait_list, cl_event *event) {
    char *next = to;
    cl_int status = CL_SUCCESS;
    for (; status == CL_SUCCESS && size > PART; next += PART, offset += PART, size -= PART) {
        status = clEnqueueReadBuffer(queue, memory, CL_TRUE, offset, PART, next, events, wait_list, NULL);
        events = 0;
        wait_list = NULL;
    }
    return status == CL_SUCCESS ? clEnqueueReadBuffer(queue, memory, CL_TRUE, offset, size, next, events, wait_list, event)
                                : status;
}
