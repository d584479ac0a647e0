/* Takes memory of the host, of one kind, until the API refuses more.
 *
 *   host_cl sources|programs|svm|buffers|kernels MOST     prints `KIND: N, error E, kept N` and waits for its input to end
 *
 * Exits with 0 if the API's own error has come before MOST of them, and if as many can be made again when all are released. */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 4 << 20, SHARED = 8 << 20, REUSED = 64 };

static cl_context context;
static cl_device_id device;
static cl_program built;
static cl_kernel kernel;

static void *source(cl_int *error) {
    static char text[TEXT];
    const char *strings = memset(text, ' ', TEXT);
    return clCreateProgramWithSource(context, 1, &strings, &(size_t){TEXT}, error);
}

static void *program(cl_int *error) {
    const char *text = "kernel void add(global int *a, global int *b) { b[get_global_id(0)] += a[get_global_id(0)]; }";
    cl_program made = clCreateProgramWithSource(context, 1, &text, NULL, error);
    if (made && (*error = clBuildProgram(made, 1, &device, "", NULL, NULL)))
        return NULL;
    return made;
}

static void *shared(cl_int *error) {
    void *memory = clSVMAlloc(context, CL_MEM_READ_WRITE, SHARED, 0);
    *error = memory ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return memory ? memset(memory, 1, SHARED) : NULL;
}

static void *buffer(cl_int *error) { return clCreateBuffer(context, CL_MEM_READ_WRITE, 1, NULL, error); }
static void *made_kernel(cl_int *error) { return clCreateKernel(built, "add", error); }
static void free_shared(void *memory) { clSVMFree(context, memory); }
static void release_program(void *object) { clReleaseProgram(object); }
static void release_buffer(void *object) { clReleaseMemObject(object); }
static void release_kernel(void *object) { clReleaseKernel(object); }

static const struct {
    const char *name;
    void *(*make)(cl_int *error);
    void (*release)(void *object);
} kinds[] = {
    {"sources", source, release_program}, {"programs", program, release_program}, {"svm", shared, free_shared},
    {"buffers", buffer, release_buffer},  {"kernels", made_kernel, release_kernel},
};

int main(int argc, char **argv) {
    cl_platform_id platform;
    cl_int error;
    const char *name = argc > 1 ? argv[1] : "";
    size_t most = argc > 2 ? strtoul(argv[2], NULL, 10) : 0, kind = 0, count = 0, again = 0;
    while (kind < sizeof kinds / sizeof kinds[0] && strcmp(kinds[kind].name, name) != 0)
        kind++;
    void **objects = calloc(most + 1, sizeof *objects);
    if (kind == sizeof kinds / sizeof kinds[0] || !objects || clGetPlatformIDs(1, &platform, NULL)
        || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return 2;
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    built = program(&error);
    if (!built || !(kernel = clCreateKernel(built, "add", &error)))
        return 2;
    while (count < most && (objects[count] = kinds[kind].make(&error)))
        count++;
    printf("%s: %zu, error %d\n", name, count, error);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (size_t i = 0; i < count; i++)
        kinds[kind].release(objects[i]);
    while (again < count && again < REUSED && (objects[again] = kinds[kind].make(&error)))
        again++;
    printf("again: %zu, error %d\n", again, error);
    return count == most || again < (count < REUSED ? count : REUSED);
}
