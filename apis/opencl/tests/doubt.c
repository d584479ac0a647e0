/* A kernel whose time depends on a buffer's content: cheap launches, then one that takes long, then the same again. */
#include "common.h"

static const char *const source = "kernel void turns(global uint *out, global const uint *loops) {\n"
                                  "  uint x = get_global_id(0);\n"
                                  "  for (uint i = 0; i < loops[0]; i++) x = x * 1664525u + 1013904223u;\n"
                                  "  out[get_global_id(0)] = x;\n"
                                  "}\n";

int main(void) {
    struct device d = open_device(0);
    cl_program program = build(&d, source, "");
    cl_kernel kernel = kernel_of(program, "turns");
    size_t size = 4096, local = 8;
    cl_uint content[] = {1, 1, 100000, 100000};
    cl_mem out = buffer_of(&d, 0, size * sizeof(cl_uint), NULL), loops = buffer_of(&d, 0, sizeof(cl_uint), NULL);
    MUST(clSetKernelArg(kernel, 0, sizeof out, &out));
    MUST(clSetKernelArg(kernel, 1, sizeof loops, &loops));
    for (int i = 0; i < 4; i++) {
        MUST(clEnqueueWriteBuffer(d.queue, loops, CL_TRUE, 0, sizeof(cl_uint), &content[i], 0, NULL, NULL));
        MUST(clEnqueueNDRangeKernel(d.queue, kernel, 1, NULL, &size, &local, 0, NULL, NULL));
        MUST(clFinish(d.queue));
    }
    return 0;
}
