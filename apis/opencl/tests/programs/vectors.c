/* The plain path: buffers, a kernel, arguments of every kind, reading back; profiling times. */
#include "common.h"

static const char *SOURCE =
    "kernel void axpy(global const float *x, global float *y, float a, long shift, local float *scratch) {\n"
    "  size_t i = get_global_id(0);\n"
    "  scratch[get_local_id(0)] = x[i];\n"
    "  barrier(CLK_LOCAL_MEM_FENCE);\n"
    "  y[i] = a * scratch[get_local_id(0)] + y[i] + shift;\n"
    "}\n"
    "typedef struct { int a; char b[12]; double c; } item;\n"
    "kernel void item_sum(item v, global double *out) { out[get_global_id(0)] = v.a + v.b[3] + v.c; }\n";

int main(void) {
    enum { N = 1 << 16 };
    struct device d = open_device(CL_QUEUE_PROFILING_ENABLE);
    cl_program program = build(&d, SOURCE, "-cl-std=CL1.2");
    cl_kernel axpy = kernel_of(program, "axpy"), item_sum = kernel_of(program, "item_sum");
    float *x = malloc(N * 4), *y = malloc(N * 4);
    for (int i = 0; i < N; i++)
        x[i] = i, y[i] = 2 * i;
    cl_mem bx = buffer_of(&d, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, N * 4, x);
    cl_mem by = buffer_of(&d, CL_MEM_READ_WRITE, N * 4, NULL);
    MUST(clEnqueueWriteBuffer(d.queue, by, CL_TRUE, 0, N * 4, y, 0, NULL, NULL));
    float a = 0.5f;
    cl_long shift = 7;
    MUST(clSetKernelArg(axpy, 0, sizeof bx, &bx));
    MUST(clSetKernelArg(axpy, 1, sizeof by, &by));
    MUST(clSetKernelArg(axpy, 2, sizeof a, &a));
    MUST(clSetKernelArg(axpy, 3, sizeof shift, &shift));
    MUST(clSetKernelArg(axpy, 4, 64 * 4, NULL));
    size_t global = N, local = 64;
    cl_event event;
    for (int round = 0; round < 3; round++)
        MUST(clEnqueueNDRangeKernel(d.queue, axpy, 1, NULL, &global, &local, 0, NULL, round == 2 ? &event : NULL));
    MUST(clEnqueueReadBuffer(d.queue, by, CL_TRUE, 0, N * 4, y, 0, NULL, NULL));
    printf("y %lx, y[100] = %g\n", digest(y, N * 4), y[100]);

    cl_ulong queued, start, end;
    MUST(clWaitForEvents(1, &event));
    MUST(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_QUEUED, 8, &queued, NULL));
    MUST(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, 8, &start, NULL));
    MUST(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, 8, &end, NULL));
    printf("times in order: %d\n", queued <= start && start <= end);

    struct { cl_int a; char b[12]; cl_double c; } item = {1, {0, 0, 0, 4}, 0.25};
    double sum[4] = {0};
    cl_mem out = buffer_of(&d, CL_MEM_WRITE_ONLY, sizeof sum, NULL);
    MUST(clSetKernelArg(item_sum, 0, sizeof item, &item));
    MUST(clSetKernelArg(item_sum, 1, sizeof out, &out));
    size_t four = 4;
    MUST(clEnqueueNDRangeKernel(d.queue, item_sum, 1, NULL, &four, NULL, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d.queue, out, CL_TRUE, 0, sizeof sum, sum, 0, NULL, NULL));
    printf("item sums %g %g\n", sum[0], sum[3]);

    /* of a kernel that was never launched: while a command holds one, and for a moment after its event
       says that it is complete, an implementation counts its own references as well */
    cl_uint references[3], arguments;
    char name[64];
    cl_kernel fresh = kernel_of(program, "axpy");
    MUST(clGetKernelInfo(fresh, CL_KERNEL_REFERENCE_COUNT, 4, &references[0], NULL));
    MUST(clRetainKernel(fresh));
    MUST(clGetKernelInfo(fresh, CL_KERNEL_REFERENCE_COUNT, 4, &references[1], NULL));
    MUST(clReleaseKernel(fresh));
    MUST(clGetKernelInfo(fresh, CL_KERNEL_REFERENCE_COUNT, 4, &references[2], NULL));
    MUST(clReleaseKernel(fresh));
    MUST(clGetKernelInfo(axpy, CL_KERNEL_NUM_ARGS, 4, &arguments, NULL));
    MUST(clGetKernelInfo(axpy, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL));
    printf("%s: %u, %u, %u references, %u arguments\n", name, references[0], references[1], references[2], arguments);
    cl_program of_kernel;
    MUST(clGetKernelInfo(axpy, CL_KERNEL_PROGRAM, sizeof of_kernel, &of_kernel, NULL));
    printf("the kernel's program is the same: %d\n", of_kernel == program);
    cl_context of_buffer;
    MUST(clGetMemObjectInfo(bx, CL_MEM_CONTEXT, sizeof of_buffer, &of_buffer, NULL));
    printf("the buffer's context is the same: %d\n", of_buffer == d.context);

    float pattern = 3.5f;
    MUST(clEnqueueFillBuffer(d.queue, by, &pattern, 4, 0, N * 4, 0, NULL, NULL));
    MUST(clEnqueueCopyBuffer(d.queue, by, bx, 0, 4096, 4096, 0, NULL, NULL));
    MUST(clFinish(d.queue));
    MUST(clEnqueueReadBuffer(d.queue, bx, CL_TRUE, 0, N * 4, x, 0, NULL, NULL));
    printf("x %lx\n", digest(x, N * 4));

    clReleaseEvent(event);
    clReleaseMemObject(bx), clReleaseMemObject(by), clReleaseMemObject(out);
    clReleaseKernel(axpy), clReleaseKernel(item_sum);
    clReleaseProgram(program);
    close_device(&d);
    return 0;
}
