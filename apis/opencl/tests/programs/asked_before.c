/* A process that only asks before it forks, as fork servers and modules that list devices do: its children, and theirs, use what it was
 * told. Without an argument devices are first asked for in the children, as natively PoCL does not survive a fork later. */
#include "common.h"
#include <sys/wait.h>

static struct device asked;
static cl_device_id listed[8];
static cl_uint count;

static int is_listed(cl_device_id device) {
    for (cl_uint i = 0; i < count; i++)
        if (listed[i] == device)
            return 1;
    return 0;
}

static void list(void) {
    MUST(clGetDeviceIDs(asked.platform, CL_DEVICE_TYPE_CPU, 8, listed, &count));
    asked.device = listed[0];
}

static void use(int seed) {
    cl_platform_id platforms[8], platform = NULL;
    cl_device_id again[8], device = NULL;
    cl_uint others = 0, devices = 0;
    char name[300] = "";
    cl_int status;
    if (count == 0)
        list();
    SHOW(clGetPlatformIDs(8, platforms, &others));
    printf("platform again: %d\n", platforms[0] == asked.platform);
    SHOW(clGetPlatformInfo(asked.platform, CL_PLATFORM_VERSION, sizeof name, name, NULL));
    SHOW(clGetDeviceIDs(asked.platform, CL_DEVICE_TYPE_ALL, 8, again, &devices));
    for (cl_uint i = 0; i < devices; i++)
        printf("device again: %d\n", again[i] == listed[i]);
    SHOW(clGetDeviceInfo(asked.device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL));
    printf("its platform: %d\n", platform == asked.platform);
    struct device d = asked;
    d.context = clCreateContext(NULL, 1, &asked.device, NULL, NULL, &status);
    MUST(status);
    SHOW(clGetContextInfo(d.context, CL_CONTEXT_DEVICES, sizeof device, &device, NULL));
    printf("its device: %d\n", is_listed(device));
    d.queue = clCreateCommandQueue(d.context, d.device, 0, &status);
    MUST(status);
    int value = 0;
    cl_mem buffer = buffer_of(&d, CL_MEM_COPY_HOST_PTR, sizeof seed, &seed);
    SHOW(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, sizeof value, &value, 0, NULL, NULL));
    printf("read %d\n", value);
    MUST(clReleaseMemObject(buffer));
    close_device(&d);
}

static void in_child(int generations) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (generations > 1)
            in_child(generations - 1);
        use(generations);
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("child: %d\n", status);
}

int main(int arguments, char **argument) {
    (void)argument;
    MUST(clGetPlatformIDs(1, &asked.platform, NULL));
    in_child(1);
    in_child(2);
    if (arguments == 1)
        return 0;
    list();
    in_child(1);
    in_child(2);
    use(7);
    in_child(2);
    return 0;
}
