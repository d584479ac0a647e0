/* Platforms and devices that the application has asked for, by the questions: every process gets them alike, so handles of before a fork
 * are valid in the child. Written at any time by any thread; read in a child of fork, when it has attached. */
#include "guest.h"

enum { MOST_PLATFORMS = 16, MOST_DEVICES = 128 };

/* A device, as an answer: the one of this index among those of the type. */
struct answer {
    cl_device_id device;
    cl_platform_id platform;
    cl_device_type type;
    cl_uint index;
};

static cl_platform_id platforms[MOST_PLATFORMS];
static struct answer answers[MOST_DEVICES];
/* Answers that have a place. One whose device is NULL is being written. */
static cl_uint places;
/* The child is asking. */
static int asks_again;

static cl_device_id device_of(const struct answer *answer) {
    return __atomic_load_n(&answer->device, __ATOMIC_ACQUIRE);
}

static void ask_again(void) {
    cl_platform_id now[MOST_PLATFORMS];
    cl_device_id devices[MOST_DEVICES];
    cl_uint count = 0;
    asks_again = 1;
    if (clIcdGetPlatformIDsKHR(MOST_PLATFORMS, now, &count) != CL_SUCCESS)
        count = 0;
    for (cl_uint i = 0; i < count && i < MOST_PLATFORMS; i++)
        if (platforms[i])
            aviary_same_handle(now[i], platforms[i]);
    for (cl_uint i = 0; i < MOST_DEVICES; i++) {
        const struct answer *answer = &answers[i];
        if (device_of(answer) && clGetDeviceIDs(answer->platform, answer->type, MOST_DEVICES, devices, &count) == CL_SUCCESS
            && answer->index < count)
            aviary_same_handle(devices[answer->index], answer->device);
    }
    asks_again = 0;
}

void opencl_note_platforms(cl_uint entries, const cl_platform_id *answered, const cl_uint *count) {
    if (!answered || asks_again)
        return;
    for (cl_uint i = 0; i < entries && i < MOST_PLATFORMS && (!count || i < *count); i++)
        if (aviary_is_handle(answered[i]))
            __atomic_store_n(&platforms[i], answered[i], __ATOMIC_RELAXED);
    aviary_after_fork(ask_again);
}

static int is_known(cl_device_id device) {
    for (cl_uint i = 0; i < MOST_DEVICES && device_of(&answers[i]); i++)
        if (device_of(&answers[i]) == device)
            return 1;
    return 0;
}

void opencl_note_devices(cl_platform_id platform, cl_device_type type, cl_uint entries, const cl_device_id *devices,
                         const cl_uint *count) {
    if (!devices || asks_again)
        return;
    for (cl_uint i = 0; i < entries && (!count || i < *count); i++) {
        if (!aviary_is_handle(devices[i]) || is_known(devices[i]) || __atomic_load_n(&places, __ATOMIC_RELAXED) >= MOST_DEVICES)
            continue;
        cl_uint at = __atomic_fetch_add(&places, 1, __ATOMIC_RELAXED);
        if (at >= MOST_DEVICES)
            return;
        answers[at] = (struct answer){NULL, platform, type, i};
        __atomic_store_n(&answers[at].device, devices[i], __ATOMIC_RELEASE);
    }
}
