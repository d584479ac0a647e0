/* Shared virtual memory: allocation, kernels over pointers, copies, fills, maps, freeing in a queue. */
#include "common.h"
#include <pthread.h>

static volatile int freed;
static void CL_CALLBACK free_all(cl_command_queue queue, cl_uint count, void *pointers[], void *data) {
    (void)queue;
    for (cl_uint i = 0; i < count; i++)
        clSVMFree((cl_context)data, pointers[i]);
    freed = count;
}

int main(void) {
    enum { N = 4096 };
    struct device d = open_device(0);
    cl_device_svm_capabilities capabilities = 0;
    MUST(clGetDeviceInfo(d.device, CL_DEVICE_SVM_CAPABILITIES, sizeof capabilities, &capabilities, NULL));
    /* All of the program's memory is never shared: what is natively claimed of that is not through Aviary. */
    printf("capabilities %lx\n", (unsigned long)(capabilities & ~(cl_device_svm_capabilities)CL_DEVICE_SVM_FINE_GRAIN_SYSTEM));
    if (!(capabilities & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER))
        return 0;
    int *a = clSVMAlloc(d.context, CL_MEM_READ_WRITE, N * 4, 0), *b = clSVMAlloc(d.context, CL_MEM_READ_WRITE, N * 4, 64);
    printf("allocated %d %d, aligned %d\n", a != NULL, b != NULL, (uintptr_t)b % 64 == 0);
    printf("refused %d\n", clSVMAlloc(d.context, CL_MEM_READ_WRITE, 0, 0) == NULL);
    MUST(clEnqueueSVMMap(d.queue, CL_TRUE, CL_MAP_WRITE, a, N * 4, 0, NULL, NULL));
    for (int i = 0; i < N; i++)
        a[i] = i;
    MUST(clEnqueueSVMUnmap(d.queue, a, 0, NULL, NULL));
    int pattern = 1000;
    MUST(clEnqueueSVMMemFill(d.queue, b, &pattern, 4, N * 4, 0, NULL, NULL));
    cl_program program = build(&d, "kernel void add(global int *a, global int *b) { b[get_global_id(0)] += a[get_global_id(0)]; }", "");
    cl_kernel add = kernel_of(program, "add");
    MUST(clSetKernelArgSVMPointer(add, 0, a));
    MUST(clSetKernelArgSVMPointer(add, 1, b));
    void *used[] = {a, b};
    MUST(clSetKernelExecInfo(add, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof used, used));
    size_t global = N;
    MUST(clEnqueueNDRangeKernel(d.queue, add, 1, NULL, &global, NULL, 0, NULL, NULL));
    MUST(clEnqueueSVMMap(d.queue, CL_TRUE, CL_MAP_READ, b, N * 4, 0, NULL, NULL));
    printf("b[5] %d %lx\n", b[5], digest(b, N * 4));
    MUST(clEnqueueSVMUnmap(d.queue, b, 0, NULL, NULL));
    int *host = malloc(N * 4);
    MUST(clEnqueueSVMMemcpy(d.queue, CL_TRUE, host, b, N * 4, 0, NULL, NULL));
    printf("host %lx\n", digest(host, N * 4));
    for (int i = 0; i < N; i++)
        host[i] = -i;
    cl_event event;
    MUST(clEnqueueSVMMemcpy(d.queue, CL_FALSE, a, host, N * 4, 0, NULL, &event));
    MUST(clWaitForEvents(1, &event));
    MUST(clEnqueueSVMMemcpy(d.queue, CL_TRUE, b, a, N * 4, 0, NULL, NULL));
    printf("a %lx b %lx\n", digest(a, N * 4), digest(b, N * 4));
    clReleaseEvent(event);
    MUST(clEnqueueSVMFree(d.queue, 2, used, free_all, d.context, 0, NULL, &event));
    MUST(clWaitForEvents(1, &event));
    for (int i = 0; i < 2000 && !freed; i++)
        usleep(1000);
    printf("freed %d\n", freed);
    clReleaseEvent(event), clReleaseKernel(add), clReleaseProgram(program), free(host);
    close_device(&d);
    return 0;
}
