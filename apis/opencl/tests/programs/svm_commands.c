/* Queries of buffers over SVM, and commands whose work is the program's own: clEnqueueSVMFree, clEnqueueNativeKernel. */
#include "common.h"

static void CL_CALLBACK frees(cl_command_queue queue, cl_uint count, void *pointers[], void *data) {
    (void)queue;
    (void)pointers;
    *(volatile cl_uint *)data = count;
}

struct arguments {
    int *first, add, *second;
};

static void CL_CALLBACK native(void *data) {
    struct arguments *a = data;
    for (int i = 0; i < 16; i++)
        a->first[i] += a->add + a->second[i];
}

static void show_buffer(struct device *d, char *memory, size_t size) {
    cl_int status;
    cl_bool over = 9;
    void *host = NULL;
    cl_mem buffer = clCreateBuffer(d->context, CL_MEM_USE_HOST_PTR, size, memory, &status);
    printf("%zu bytes over SVM: %d\n", size, status);
    if (!buffer)
        return;
    MUST(clGetMemObjectInfo(buffer, CL_MEM_USES_SVM_POINTER, sizeof over, &over, NULL));
    MUST(clGetMemObjectInfo(buffer, CL_MEM_HOST_PTR, sizeof host, &host, NULL));
    printf("uses it: %u, at its address: %d\n", over, host == memory);
    MUST(clReleaseMemObject(buffer));
}

static void show_type(cl_event event) {
    cl_command_type type = 0;
    MUST(clWaitForEvents(1, &event));
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
    printf("command type %x\n", type);
    MUST(clReleaseEvent(event));
}

static void native_kernel(struct device *d, cl_command_queue queue) {
    int numbers[16], out[16];
    for (int i = 0; i < 16; i++)
        numbers[i] = i;
    cl_mem first = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof numbers, numbers);
    cl_mem second = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof numbers, numbers);
    struct arguments a = {NULL, 100, NULL};
    const void *places[] = {&a.first, &a.second};
    cl_mem buffers[] = {first, second};
    cl_int status;
    cl_event gate = clCreateUserEvent(d->context, &status), done;
    MUST(clEnqueueNativeKernel(queue, native, &a, sizeof a, 2, buffers, places, 1, &gate, &done));
    /* The arguments were copied. */
    a.add = 0;
    MUST(clSetUserEventStatus(gate, CL_COMPLETE));
    MUST(clEnqueueReadBuffer(queue, first, CL_TRUE, 0, sizeof out, out, 1, &done, NULL));
    printf("native kernel: %d %d\n", out[0], out[15]);
    show_type(done);
    SHOW(clEnqueueNativeKernel(queue, NULL, NULL, 0, 0, NULL, NULL, 0, NULL, NULL));
    SHOW(clEnqueueNativeKernel(queue, native, NULL, 8, 0, NULL, NULL, 0, NULL, NULL));
    SHOW(clEnqueueNativeKernel(queue, native, &a, 0, 0, NULL, NULL, 0, NULL, NULL));
    SHOW(clEnqueueNativeKernel(queue, native, &a, sizeof a, 1, NULL, places, 0, NULL, NULL));
    SHOW(clEnqueueNativeKernel(queue, native, &a, sizeof a, 0, buffers, NULL, 0, NULL, NULL));
    SHOW(clEnqueueNativeKernel(queue, native, NULL, 0, 0, NULL, NULL, 1, NULL, NULL));
    MUST(clReleaseEvent(gate));
    MUST(clReleaseMemObject(first));
    MUST(clReleaseMemObject(second));
}

int main(void) {
    struct device d = open_device(0);
    cl_int status;
    cl_ulong most = 0;
    char *memory = clSVMAlloc(d.context, CL_MEM_READ_WRITE, 4096, 0);
    show_buffer(&d, memory, 1);
    show_buffer(&d, memory, 4096);
    show_buffer(&d, memory, 4097);
    MUST(clGetDeviceInfo(d.device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL));
    printf("more than the device has: %d\n", clSVMAlloc(d.context, CL_MEM_READ_WRITE, most + 1, 0) == NULL);
    clSVMFree(d.context, memory);

    volatile cl_uint freed = 0;
    void *list[] = {clSVMAlloc(d.context, CL_MEM_READ_WRITE, 64, 0)};
    cl_event event;
    MUST(clEnqueueSVMFree(d.queue, 1, list, frees, (void *)&freed, 0, NULL, &event));
    show_type(event);
    for (int i = 0; i < 60000 && !freed; i++)
        usleep(1000);
    printf("the function got %u pointer\n", freed);
    clSVMFree(d.context, list[0]);

    cl_command_queue unordered = clCreateCommandQueue(d.context, d.device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &status);
    MUST(status);
    native_kernel(&d, d.queue);
    native_kernel(&d, unordered);
    MUST(clReleaseCommandQueue(unordered));
    close_device(&d);
    return 0;
}
