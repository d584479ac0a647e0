/* A buffer over memory that the program may not write. Mapping it for reading writes nothing there. */
#include "common.h"
#include <sys/mman.h>

int main(void) {
    struct device d = open_device(0);
    const size_t size = 1 << 20;
    cl_int status;
    unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < size; i++)
        memory[i] = (unsigned char)(i * 7);
    mprotect(memory, size, PROT_READ);
    cl_mem in = buffer_of(&d, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, size, memory);
    cl_mem out = buffer_of(&d, CL_MEM_READ_WRITE, size, NULL);
    cl_program program = build(&d, "kernel void k(global const uchar *a, global uchar *b) { size_t i = get_global_id(0); b[i] = a[i] + 1; }", "");
    cl_kernel k = kernel_of(program, "k");
    MUST(clSetKernelArg(k, 0, sizeof in, &in));
    MUST(clSetKernelArg(k, 1, sizeof out, &out));
    MUST(clEnqueueNDRangeKernel(d.queue, k, 1, NULL, &size, NULL, 0, NULL, NULL));
    unsigned char *mapped = clEnqueueMapBuffer(d.queue, in, CL_TRUE, CL_MAP_READ, 0, size, 0, NULL, NULL, &status);
    MUST(status);
    printf("mapped where it was: %d, byte %d\n", mapped == memory, mapped[12345]);
    MUST(clEnqueueUnmapMemObject(d.queue, in, mapped, 0, NULL, NULL));
    cl_buffer_region region = {4096, 8192};
    cl_mem part = clCreateSubBuffer(in, CL_MEM_READ_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    MUST(status);
    cl_event event;
    mapped = clEnqueueMapBuffer(d.queue, part, CL_FALSE, CL_MAP_READ, 0, 8192, 0, NULL, &event, &status);
    MUST(status);
    MUST(clWaitForEvents(1, &event));
    printf("part where it was: %d, byte %d\n", mapped == memory + 4096, mapped[123]);
    MUST(clEnqueueUnmapMemObject(d.queue, part, mapped, 0, NULL, NULL));
    unsigned char *result = malloc(size);
    MUST(clEnqueueReadBuffer(d.queue, out, CL_TRUE, 0, size, result, 0, NULL, NULL));
    printf("result %lx\n", digest(result, size));
    MUST(clReleaseEvent(event));
    MUST(clReleaseMemObject(part));
    MUST(clReleaseMemObject(in));
    MUST(clReleaseMemObject(out));
    MUST(clReleaseKernel(k));
    MUST(clReleaseProgram(program));
    free(result);
    close_device(&d);
    return 0;
}
