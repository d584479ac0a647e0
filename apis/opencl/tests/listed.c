/* Which devices there are, by their names: all that a program is told, however it asks. */
#include "common.h"

static void show(const char *what, cl_device_id *devices, cl_uint count) {
    for (cl_uint d = 0; d < count; d++) {
        char name[256] = "";
        MUST(clGetDeviceInfo(devices[d], CL_DEVICE_NAME, sizeof name, name, NULL));
        printf("%s: %s\n", what, name);
    }
}

/* A context has no other devices than were found, and memory and a queue can be had on each. */
static void use(cl_context context, cl_uint expected) {
    cl_device_id devices[16];
    cl_int status;
    size_t bytes;
    MUST(clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes));
    if (bytes != expected * sizeof *devices)
        printf("FAIL: %zu bytes of devices, %u were found\n", bytes, expected);
    show("  in a context", devices, (cl_uint)(bytes / sizeof *devices));
    cl_mem memory = clCreateBuffer(context, CL_MEM_READ_WRITE, 64, NULL, &status);
    MUST(status);
    for (size_t d = 0; d < bytes / sizeof *devices; d++) {
        char text[64] = "";
        cl_command_queue queue = clCreateCommandQueueWithProperties(context, devices[d], NULL, &status);
        MUST(status);
        MUST(clEnqueueWriteBuffer(queue, memory, CL_TRUE, 0, sizeof text, text, 0, NULL, NULL));
        MUST(clReleaseCommandQueue(queue));
    }
    MUST(clReleaseMemObject(memory));
    MUST(clReleaseContext(context));
}

int main(void) {
    static const struct {
        const char *name;
        cl_device_type type;
    } types[] = {{"all", CL_DEVICE_TYPE_ALL}, {"default", CL_DEVICE_TYPE_DEFAULT}, {"cpu", CL_DEVICE_TYPE_CPU}, {"gpu", CL_DEVICE_TYPE_GPU}};
    cl_platform_id platforms[8];
    cl_uint count = 0;
    MUST(clGetPlatformIDs(8, platforms, &count));
    for (cl_uint p = 0; p < count; p++) {
        char name[128] = "";
        MUST(clGetPlatformInfo(platforms[p], CL_PLATFORM_NAME, sizeof name, name, NULL));
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            cl_device_id devices[16];
            cl_uint found = 0, listed = 0;
            cl_int status = clGetDeviceIDs(platforms[p], types[t].type, 0, NULL, &found);
            const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platforms[p], 0};
            cl_int made = CL_SUCCESS;
            cl_context context = clCreateContextFromType(properties, types[t].type, NULL, NULL, &made);
            printf("%s, %s: %u, status %d, a context: status %d\n", name, types[t].name, status == CL_SUCCESS ? found : 0, status, made);
            if (status != CL_SUCCESS)
                continue;
            MUST(clGetDeviceIDs(platforms[p], types[t].type, 16, devices, &listed));
            show(" found", devices, listed);
            if (listed != found)
                printf("FAIL: %u devices, then %u\n", found, listed);
            if (context)
                use(context, found);
        }
    }
    return 0;
}
