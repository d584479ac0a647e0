/* Starts the runtimes before a session moves here: see aviary_start in aviary/server.h. */
#include "server.h"

#define MOST_PLATFORMS 16

/* A runtime looks for its devices when it is first asked for them. */
void aviary_start(void) {
    cl_platform_id platforms[MOST_PLATFORMS];
    cl_uint count = 0;
    if (clGetPlatformIDs(MOST_PLATFORMS, platforms, &count) != CL_SUCCESS)
        return;
    for (cl_uint at = 0; at < count && at < MOST_PLATFORMS; at++) {
        cl_uint devices = 0;
        clGetDeviceIDs(platforms[at], CL_DEVICE_TYPE_ALL, 0, NULL, &devices);
    }
}
