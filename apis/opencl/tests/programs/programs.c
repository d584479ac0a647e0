/* Programs: binaries, separate compilation, failing builds and their logs, printf. */
#include "common.h"

static void binaries(struct device *d) {
    cl_program program = build(d, "kernel void add(global int *p) { p[get_global_id(0)] += 5; }", "-DX=1");
    cl_uint devices;
    size_t size = 0;
    cl_int status, loaded = 1;
    MUST(clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL));
    MUST(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
    printf("devices %u, has a binary %d\n", devices, size > 0);
    unsigned char *binary = malloc(size);
    MUST(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL));
    cl_program again = clCreateProgramWithBinary(d->context, 1, &d->device, &size, (const unsigned char **)&binary, &loaded, &status);
    printf("from binary: %d %d\n", status, loaded);
    MUST(clBuildProgram(again, 1, &d->device, "", NULL, NULL));
    cl_kernel add = kernel_of(again, "add");
    int values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cl_mem buffer = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof values, values);
    MUST(clSetKernelArg(add, 0, sizeof buffer, &buffer));
    size_t global = 8;
    MUST(clEnqueueNDRangeKernel(d->queue, add, 1, NULL, &global, NULL, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, sizeof values, values, 0, NULL, NULL));
    printf("%d %d\n", values[0], values[7]);
    char text[256] = "", *sources;
    size_t length;
    MUST(clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_OPTIONS, sizeof text, text, NULL));
    printf("options [%s]\n", text);
    MUST(clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &length));
    sources = malloc(length);
    MUST(clGetProgramInfo(program, CL_PROGRAM_SOURCE, length, sources, NULL));
    printf("source [%s]\n", sources);
    MUST(clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, sizeof text, text, NULL));
    printf("kernels [%s]\n", text);
    unsigned char rubbish[64] = "this is no program";
    size_t rubbish_size = sizeof rubbish;
    const unsigned char *rubbish_at = rubbish;
    cl_program none = clCreateProgramWithBinary(d->context, 1, &d->device, &rubbish_size, &rubbish_at, &loaded, &status);
    printf("rubbish refused: %d\n", none == NULL || clBuildProgram(none, 1, &d->device, "", NULL, NULL) != CL_SUCCESS);
    if (none)
        clReleaseProgram(none);
    clReleaseMemObject(buffer), clReleaseKernel(add), clReleaseProgram(again), clReleaseProgram(program);
    free(binary), free(sources);
}

static void separate(struct device *d) {
    const char *header = "int twice(int v);\n", *library = "int twice(int v) { return 2 * v; }\n";
    const char *main_source = "#include \"twice.h\"\nkernel void run(global int *p) { p[0] = twice(21); }\n";
    cl_int status;
    cl_program headers = clCreateProgramWithSource(d->context, 1, &header, NULL, &status);
    cl_program one = clCreateProgramWithSource(d->context, 1, &library, NULL, &status);
    /* Two strings, one with a length, one that ends by itself. */
    const char *parts[] = {main_source, "// the end"};
    size_t lengths[] = {strlen(main_source), 0};
    cl_program two = clCreateProgramWithSource(d->context, 2, parts, lengths, &status);
    MUST(status);
    const char *name = "twice.h";
    MUST(clCompileProgram(one, 1, &d->device, "", 0, NULL, NULL, NULL, NULL));
    MUST(clCompileProgram(two, 1, &d->device, "", 1, &headers, &name, NULL, NULL));
    cl_program objects[] = {one, two};
    cl_program linked = clLinkProgram(d->context, 1, &d->device, "", 2, objects, NULL, NULL, &status);
    printf("link: %d\n", status);
    cl_kernel kernels[4];
    cl_uint count = 0;
    MUST(clCreateKernelsInProgram(linked, 4, kernels, &count));
    printf("%u kernels\n", count);
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, 4, NULL);
    MUST(clSetKernelArg(kernels[0], 0, sizeof buffer, &buffer));
    MUST(clEnqueueTask(d->queue, kernels[0], 0, NULL, NULL));
    int answer = 0;
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, 4, &answer, 0, NULL, NULL));
    printf("the answer is %d\n", answer);
    clReleaseKernel(kernels[0]), clReleaseProgram(linked), clReleaseProgram(one), clReleaseProgram(two), clReleaseProgram(headers);
    clReleaseMemObject(buffer);
}

static void failing(struct device *d) {
    const char *source = "kernel void broken(global int *p) { p[0] = undeclared; }";
    cl_int status;
    cl_program program = clCreateProgramWithSource(d->context, 1, &source, NULL, &status);
    MUST(status);
    SHOW(clBuildProgram(program, 1, &d->device, "", NULL, NULL));
    cl_build_status built;
    MUST(clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_STATUS, sizeof built, &built, NULL));
    size_t length = 0;
    MUST(clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &length));
    char *log = calloc(1, length + 1);
    MUST(clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, length, log, NULL));
    printf("status %d, the log names it: %d\n", built, strstr(log, "undeclared") != NULL);
    cl_kernel none = clCreateKernel(program, "broken", &status);
    printf("kernel %d, status %d\n", none != NULL, status);
    free(log), clReleaseProgram(program);
}

static void printing(struct device *d) {
    cl_program program = build(d, "kernel void talk(int n) { printf(\"kernel says %d %s %.2f\\n\", n, \"hello\", 1.5f); }", "");
    cl_kernel talk = kernel_of(program, "talk");
    for (cl_int n = 0; n < 3; n++) {
        MUST(clSetKernelArg(talk, 0, sizeof n, &n));
        MUST(clEnqueueTask(d->queue, talk, 0, NULL, NULL));
        MUST(clFinish(d->queue));
    }
    clReleaseKernel(talk), clReleaseProgram(program);
}

int main(void) {
    struct device d = open_device(0);
    setvbuf(stdout, NULL, _IONBF, 0);
    binaries(&d);
    separate(&d);
    failing(&d);
    printing(&d);
    close_device(&d);
    return 0;
}
