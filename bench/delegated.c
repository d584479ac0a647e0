// Calls of an OpenCL program in the proportions of the paper's test (Wormhole, Table 1): copies of 4 KiB, small settings, launches and
// questions.
//
//   delegated KIND N     KIND: transfer, argument, launch, query, or mix with N rounds of 2, 4, 1 and 1 of them. After a line of
//                        standard input: the calls; then it waits for the end of standard input
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 4096

static cl_command_queue queue;
static cl_mem buffer;
static cl_kernel kernel;
static cl_device_id device;

static void must(cl_int status) {
    if (status == CL_SUCCESS) return;
    fprintf(stderr, "delegated: OpenCL status %d\n", status);
    exit(1);
}

static void open_device(void) {
    static const char *source = "__kernel void add(__global int *to, int n) { to[get_global_id(0)] += n; }";
    cl_platform_id platform;
    cl_int status;
    must(clGetPlatformIDs(1, &platform, NULL));
    must(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    must(status);
    queue = clCreateCommandQueue(context, device, 0, &status);
    must(status);
    buffer = clCreateBuffer(context, CL_MEM_READ_WRITE, BYTES, NULL, &status);
    must(status);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &status);
    must(status);
    must(clBuildProgram(program, 1, &device, "", NULL, NULL));
    kernel = clCreateKernel(program, "add", &status);
    must(status);
    must(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
}

static void transfer(long n) {
    static char bytes[BYTES];
    must(n % 2 ? clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, BYTES, bytes, 0, NULL, NULL)
               : clEnqueueWriteBuffer(queue, buffer, CL_TRUE, 0, BYTES, bytes, 0, NULL, NULL));
}

static void argument(long n) {
    cl_int value = (cl_int)n;
    must(clSetKernelArg(kernel, 1, sizeof value, &value));
}

static void launch(long n) {
    size_t size = BYTES / sizeof(cl_int);
    (void)n;
    must(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL));
}

static void query(long n) {
    cl_uint units;
    (void)n;
    must(clGetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL));
}

static void mix(long n) {
    for (long i = 0; i < 4; i++) argument(n + i);
    launch(n);
    transfer(0);
    transfer(1);
    query(n);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*call)(long);
    } kinds[] = {{"transfer", transfer}, {"argument", argument}, {"launch", launch}, {"query", query}, {"mix", mix}};
    long count = argc > 2 ? atol(argv[2]) : 0;
    void (*call)(long) = NULL;
    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(argv[1], kinds[i].name)) call = kinds[i].call;
    if (!call || count < 1) return 2;
    open_device();
    mix(0);
    must(clFinish(queue));
    puts("ready");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    for (long i = 0; i < count; i++) call(i);
    must(clFinish(queue));
    puts("done");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}
