/* Transfers: non-blocking, rectangular, many at once, out of order, waited for in several ways. */
#include "common.h"

static void non_blocking(struct device *d) {
    enum { N = 1 << 20, PARTS = 16 };
    unsigned char *from = malloc(N), *to = calloc(1, N);
    for (int i = 0; i < N; i++)
        from[i] = i * 7 + (i >> 8);
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, N, NULL);
    cl_event written[PARTS], read[PARTS];
    for (int i = 0; i < PARTS; i++)
        MUST(clEnqueueWriteBuffer(d->queue, buffer, CL_FALSE, i * (N / PARTS), N / PARTS, from + i * (N / PARTS), 0, NULL, &written[i]));
    for (int i = 0; i < PARTS; i++)
        MUST(clEnqueueReadBuffer(d->queue, buffer, CL_FALSE, i * (N / PARTS), N / PARTS, to + i * (N / PARTS), 1, &written[i], &read[i]));
    MUST(clFlush(d->queue));
    MUST(clWaitForEvents(PARTS, read));
    printf("events: same %d\n", memcmp(from, to, N) == 0);
    for (int i = 0; i < PARTS; i++)
        clReleaseEvent(written[i]), clReleaseEvent(read[i]);

    /* No event at all: clFinish is the only way to know. */
    memset(to, 0, N);
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_FALSE, 0, N, to, 0, NULL, NULL));
    MUST(clFinish(d->queue));
    printf("finish: same %d\n", memcmp(from, to, N) == 0);

    /* Asking until it is there. */
    memset(to, 0, N);
    cl_event event;
    cl_int status = CL_QUEUED;
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_FALSE, 0, N, to, 0, NULL, &event));
    MUST(clFlush(d->queue));
    while (status > CL_COMPLETE)
        MUST(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    printf("polling: same %d\n", memcmp(from, to, N) == 0);
    clReleaseEvent(event);

    /* A small one, where the call itself could carry the data. */
    unsigned char few[100] = {0};
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_FALSE, 33, sizeof few, few, 0, NULL, &event));
    MUST(clWaitForEvents(1, &event));
    printf("few: same %d\n", memcmp(from + 33, few, sizeof few) == 0);
    clReleaseEvent(event);
    clReleaseMemObject(buffer), free(from), free(to);
}

static void rectangles(struct device *d) {
    enum { W = 64, H = 32, D = 4 };
    unsigned char box[W * H * D], host[100 * 50 * 6];
    for (int i = 0; i < W * H * D; i++)
        box[i] = i * 13;
    memset(host, 0xee, sizeof host);
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof box, box);
    size_t from[3] = {4, 3, 1}, at[3] = {10, 5, 2}, region[3] = {40, 20, 3};
    MUST(clEnqueueReadBufferRect(d->queue, buffer, CL_TRUE, from, at, region, W, W * H, 100, 5000, host, 0, NULL, NULL));
    printf("read rect %lx\n", digest(host, sizeof host));
    cl_event event;
    memset(host, 0x11, sizeof host);
    MUST(clEnqueueReadBufferRect(d->queue, buffer, CL_FALSE, from, at, region, W, W * H, 100, 5000, host, 0, NULL, &event));
    MUST(clWaitForEvents(1, &event));
    clReleaseEvent(event);
    printf("read rect later %lx\n", digest(host, sizeof host));
    size_t zero[3] = {0};
    unsigned char tight[40 * 20 * 3];
    MUST(clEnqueueReadBufferRect(d->queue, buffer, CL_TRUE, from, zero, region, W, W * H, 0, 0, tight, 0, NULL, NULL));
    printf("read tight %lx\n", digest(tight, sizeof tight));
    for (size_t i = 0; i < sizeof host; i++)
        host[i] = i;
    MUST(clEnqueueWriteBufferRect(d->queue, buffer, CL_TRUE, from, at, region, W, W * H, 100, 5000, host, 0, NULL, NULL));
    MUST(clEnqueueCopyBufferRect(d->queue, buffer, buffer, zero, (size_t[]){0, 0, 3}, (size_t[]){W, H, 1}, W, W * H, W, W * H, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, sizeof box, box, 0, NULL, NULL));
    printf("buffer %lx\n", digest(box, sizeof box));
    clReleaseMemObject(buffer);
}

static void out_of_order(struct device *d) {
    cl_int status;
    cl_command_queue queue = clCreateCommandQueue(d->context, d->device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &status);
    MUST(status);
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, 4096, NULL);
    cl_event user = clCreateUserEvent(d->context, &status), first, second, last;
    MUST(status);
    unsigned char one = 1, two = 2, result[4096];
    memset(result, 0, sizeof result);
    MUST(clEnqueueFillBuffer(queue, buffer, &one, 1, 0, 4096, 1, &user, &first));
    MUST(clEnqueueFillBuffer(queue, buffer, &two, 1, 1024, 1024, 1, &first, &second));
    MUST(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, 4096, result, 1, &second, &last));
    MUST(clFlush(queue));
    MUST(clGetEventInfo(last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    printf("before: waits %d, nothing read %d\n", status > CL_COMPLETE, result[0] == 0);
    MUST(clSetUserEventStatus(user, CL_COMPLETE));
    MUST(clWaitForEvents(1, &last));
    printf("after: %d %d %d\n", result[0], result[1500], result[4000]);
    clReleaseEvent(user), clReleaseEvent(first), clReleaseEvent(second), clReleaseEvent(last);
    clReleaseMemObject(buffer), clReleaseCommandQueue(queue);
}

int main(void) {
    struct device d = open_device(0);
    non_blocking(&d);
    rectangles(&d);
    out_of_order(&d);
    close_device(&d);
    return 0;
}
