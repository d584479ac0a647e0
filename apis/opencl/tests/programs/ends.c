/* Ends of contexts, queues and parts of devices after work: what holds them besides the program must not show, nor use them later. A
 * context that nobody else holds is destroyed by its last release.
 *
 * Natively a thread of PoCL's holds the last command's event for a moment after the program has waited for it, and looks into the device
 * after it has let go of the context: so the program waits until it is the context's only holder, and a little longer. With an argument
 * it does not: PoCL ends it natively now and then. */
#include "../common.h"

static int is_hasty;

static void CL_CALLBACK destroyed(cl_context context, void *count) {
    (void)context;
    __atomic_add_fetch((int *)count, 1, __ATOMIC_SEQ_CST);
}

static cl_uint references(cl_context context) {
    cl_uint count = 0;
    MUST(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

/* Work in a context of its own, waited for by the queue, by an event, or by a blocking read. */
static void play(int round, cl_uint count, const cl_device_id *devices) {
    static const char *source = "kernel void k(global uint *a) { a[get_global_id(0)] += 3; }";
    static int ended;
    cl_uint zeros[64] = {0}, got[64];
    size_t size = 64;
    cl_int status;
    ended = 0;
    cl_context context = clCreateContext(NULL, count, devices, NULL, NULL, &status);
    MUST(status);
    MUST(clSetContextDestructorCallback(context, destroyed, &ended));
    cl_command_queue queue = clCreateCommandQueue(context, devices[0], 0, &status);
    MUST(status);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &status);
    MUST(status);
    MUST(clBuildProgram(program, 0, NULL, NULL, NULL, NULL));
    cl_kernel kernel = kernel_of(program, "k");
    cl_mem buffer = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof zeros, zeros, &status);
    MUST(status);
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    cl_event event;
    for (int i = 0; i < 20; i++)
        MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, i == 19 ? &event : NULL));
    if (round % 3 == 0)
        MUST(clFinish(queue));
    else if (round % 3 == 1)
        MUST(clWaitForEvents(1, &event));
    MUST(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, sizeof got, got, 0, NULL, NULL));
    MUST(clReleaseEvent(event));
    printf("round %d: value %u", round, got[63]);
    MUST(clReleaseMemObject(buffer));
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseProgram(program));
    MUST(clReleaseCommandQueue(queue));
    if (is_hasty) {
        MUST(clReleaseContext(context));
        puts("");
        return;
    }
    for (int i = 0; i < 20000 && references(context) > 1; i++)
        usleep(1000);
    usleep(5000);
    printf(", context %u", references(context));
    MUST(clReleaseContext(context));
    printf(", destroyed %d\n", __atomic_load_n(&ended, __ATOMIC_SEQ_CST));
}

int main(int argc, char **argv) {
    (void)argv;
    is_hasty = argc > 1;
    struct device device = open_device(0);
    cl_device_id parts[16];
    cl_uint count = 0;
    for (int round = 0; round < 60; round++) {
        cl_device_partition_property halves[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
        int whole = round % 2 || clCreateSubDevices(device.device, halves, 0, NULL, &count) != CL_SUCCESS || count > 16;
        if (whole) {
            play(round, 1, &device.device);
            continue;
        }
        MUST(clCreateSubDevices(device.device, halves, count, parts, NULL));
        play(round, count, parts);
        for (cl_uint i = 0; i < count; i++)
            MUST(clReleaseDevice(parts[i]));
    }
    close_device(&device);
    return 0;
}
