/* A program that waits for the device all the time: for each line that it reads so many launches, and a wait after each.
 *   awake LAUNCHES queue|event */
#include "common.h"

static const char *const source = "kernel void turns(global uint *out) {\n"
                                  "  uint x = 1;\n"
                                  "  for (uint i = 0; i < 50000; i++) x = x * 1664525u + 1013904223u;\n"
                                  "  out[0] = x;\n"
                                  "}\n";

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    struct device d = open_device(0);
    cl_kernel kernel = kernel_of(build(&d, source, ""), "turns");
    cl_mem out = buffer_of(&d, 0, sizeof(cl_uint), NULL);
    MUST(clSetKernelArg(kernel, 0, sizeof out, &out));
    int by_event = strcmp(argv[2], "event") == 0;
    const size_t one = 1;
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        for (int i = 0; i < atoi(argv[1]); i++) {
            cl_event event = NULL;
            MUST(clEnqueueNDRangeKernel(d.queue, kernel, 1, NULL, &one, NULL, 0, NULL, by_event ? &event : NULL));
            MUST(by_event ? clWaitForEvents(1, &event) : clFinish(d.queue));
            if (event)
                MUST(clReleaseEvent(event));
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
