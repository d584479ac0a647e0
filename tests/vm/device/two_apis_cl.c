/* Two APIs of one process: says "attached" when both have a session, and ends at the end of its input. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    cl_platform_id platform;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS) {
        fputs("two_apis_cl: no platform\n", stderr);
        return 1;
    }
    void *library = dlopen("libtestapi.so.1", RTLD_NOW);
    int (*noop)(void) = library ? (int (*)(void))dlsym(library, "ta_noop") : NULL;
    if (!noop) {
        fprintf(stderr, "two_apis_cl: %s\n", dlerror());
        return 1;
    }
    if (noop()) {
        fputs("two_apis_cl: ta_noop failed\n", stderr);
        return 1;
    }
    puts("attached");
    fflush(stdout);
    for (char byte; read(0, &byte, 1) > 0;)
        ;
    return 0;
}
