// Builds a kernel that includes a file and prints the build log.
//   include PATH
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    char text[512];
    snprintf(text, sizeof text, "#include \"%s\"\nkernel void k(global int *x) { *x = 1; }\n", argv[1]);
    const char *source = text;
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL)) return 1;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    error = clBuildProgram(program, 1, &device, "", NULL, NULL);
    static char log[1 << 16];
    clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    printf("%s\n%s\n", error ? "failed" : "built", log);
    return 0;
}
