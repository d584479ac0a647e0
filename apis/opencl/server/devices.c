/* Devices by name, and which of them a tenant sees. */
#include "server.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 64
#define NAME_BYTES 64

/* The device that this one is a part of, or the device itself. */
static cl_device_id whole(cl_device_id device) {
    cl_device_id parent = NULL;
    while (clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL) == CL_SUCCESS && parent)
        device = parent;
    return device;
}

/* As much of the device's name as limits of devices look at. */
static int read_name(cl_device_id device, char name[NAME_BYTES]) {
    char whole_name[1024] = "";
    if (clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof whole_name - 1, whole_name, NULL) != CL_SUCCESS)
        return 0;
    snprintf(name, NAME_BYTES, "%.*s", NAME_BYTES - 1, whole_name);
    return 1;
}

/* How many devices before this one, in the platforms' order, have the same name. */
static unsigned same_before(cl_device_id device, const char *name) {
    cl_platform_id platforms[MOST_DEVICES];
    cl_device_id devices[MOST_DEVICES];
    cl_uint platform_count = 0, same = 0;
    if (clGetPlatformIDs(MOST_DEVICES, platforms, &platform_count) != CL_SUCCESS)
        return 0;
    for (cl_uint p = 0; p < platform_count && p < MOST_DEVICES; p++) {
        cl_uint count = 0;
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count) != CL_SUCCESS)
            continue;
        for (cl_uint d = 0; d < count && d < MOST_DEVICES; d++) {
            char other[NAME_BYTES] = "";
            if (devices[d] == device)
                return same;
            same += read_name(devices[d], other) && strcmp(other, name) == 0;
        }
    }
    return 0;
}

/* The device's own name; a second one of the same name gets a number. A part of a device is scheduled as the whole. */
const char *opencl_device_name(uint64_t token) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct { cl_device_id device; char name[NAME_BYTES + 8]; } known[MOST_DEVICES];
    /* Parts come and go, and their addresses come again as those of others. */
    cl_device_id device = whole((cl_device_id)(uintptr_t)token);
    const char *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_DEVICES && !found; i++) {
        if (known[i].device && known[i].device != device)
            continue;
        if (!known[i].device) {
            char name[NAME_BYTES] = "";
            if (!read_name(device, name))
                break;
            unsigned same = same_before(device, name);
            known[i].device = device;
            if (same)
                snprintf(known[i].name, sizeof known[i].name, "%.50s #%u", name, same + 1);
            else
                snprintf(known[i].name, sizeof known[i].name, "%s", name);
        }
        found = known[i].name;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- Parts of devices that the application has let go of ------------------------------------------ */

/* The last ones are held: PoCL's threads look into a device for a moment after they have let go of a command's queue and context, and
 * end the process where these have kept it until then. */
#define LET_GO_PARTS 256
static struct {
    pthread_mutex_t lock;
    cl_device_id parts[LET_GO_PARTS];
    size_t next;
} let_go = {.lock = PTHREAD_MUTEX_INITIALIZER};

static cl_int CL_API_CALL release_device(cl_device_id device) {
    if (whole(device) == device || clRetainDevice(device) != CL_SUCCESS)
        return clReleaseDevice(device);
    pthread_mutex_lock(&let_go.lock);
    cl_device_id oldest = let_go.parts[let_go.next];
    let_go.parts[let_go.next] = device;
    let_go.next = (let_go.next + 1) % LET_GO_PARTS;
    pthread_mutex_unlock(&let_go.lock);
    if (oldest)
        clReleaseDevice(oldest);
    return clReleaseDevice(device);
}

void *opencl_release_device_function(void) {
    return (void *)release_device;
}

/* The application is not told of these references. */
static cl_int device_references(cl_device_id device, size_t bytes, void *value, size_t *needed) {
    pthread_mutex_lock(&let_go.lock);
    cl_int status = clGetDeviceInfo(device, CL_DEVICE_REFERENCE_COUNT, bytes, value, needed);
    for (size_t i = 0; status == CL_SUCCESS && value && i < LET_GO_PARTS; i++)
        *(cl_uint *)value -= let_go.parts[i] == device;
    pthread_mutex_unlock(&let_go.lock);
    return status;
}

/* ---- Queries ------------------------------------------------------------------------------------- */

/* Of its memory a device says what the tenant may have of it. */
static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info name, size_t bytes, void *value, size_t *needed) {
    if (name == CL_DEVICE_REFERENCE_COUNT)
        return device_references(device, bytes, value, needed);
    cl_int status = clGetDeviceInfo(device, name, bytes, value, needed);
    uint64_t limit, left;
    cl_ulong *memory = value;
    if ((name == CL_DEVICE_GLOBAL_MEM_SIZE || name == CL_DEVICE_MAX_MEM_ALLOC_SIZE) && status == CL_SUCCESS && value &&
        aviary_allowance("device_memory", opencl_device_name((uint64_t)(uintptr_t)device), &limit, &left) && *memory > limit)
        *memory = limit;
    return status;
}

void *opencl_device_info_function(void) {
    return (void *)device_info;
}

/* The name of the context's device with this number, where all parts of a device are that device. A device without a
 * name counts as one that has this: no memory goes uncounted. */
const char *opencl_context_device(uint64_t token, unsigned int number) {
    cl_context context = (cl_context)(uintptr_t)token;
    size_t bytes = 0;
    if (clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &bytes) != CL_SUCCESS || !bytes)
        return NULL;
    cl_device_id *devices = malloc(bytes), found = NULL;
    size_t wholes = 0;
    cl_int status = devices ? clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices, NULL) : CL_OUT_OF_HOST_MEMORY;
    for (size_t i = 0; status == CL_SUCCESS && i < bytes / sizeof *devices && !found; i++) {
        size_t before = 0;
        devices[wholes] = whole(devices[i]);
        while (devices[before] != devices[wholes])
            before++;
        if (before == wholes && wholes++ == number)
            found = devices[before];
    }
    free(devices);
    if (!found)
        return status == CL_SUCCESS || number ? NULL : "unknown";
    const char *name = opencl_device_name((uint64_t)(uintptr_t)found);
    return name ? name : "unknown";
}

/* ---- The tenant's devices --------------------------------------------------------------------- */

static int is_the_tenants(cl_device_id device) {
    const char *name = opencl_device_name((uint64_t)(uintptr_t)device);
    return aviary_may_use(name ? name : "unknown");
}

/* Those of a platform's devices that are the tenant's. */
static cl_int tenants_devices(cl_platform_id platform, cl_device_type type, cl_device_id devices[MOST_DEVICES], cl_uint *count) {
    cl_uint all = 0;
    cl_int status = clGetDeviceIDs(platform, type, MOST_DEVICES, devices, &all);
    *count = 0;
    if (status != CL_SUCCESS)
        return status;
    for (cl_uint d = 0; d < all && d < MOST_DEVICES; d++)
        if (is_the_tenants(devices[d]))
            devices[(*count)++] = devices[d];
    if (*count)
        return CL_SUCCESS;
    if (type != CL_DEVICE_TYPE_DEFAULT)
        return CL_DEVICE_NOT_FOUND;
    /* The platform's own default is somebody else's: then it is the first that is the tenant's. */
    status = tenants_devices(platform, CL_DEVICE_TYPE_ALL, devices, count);
    *count = *count != 0;
    return status;
}

static cl_int CL_API_CALL device_ids(cl_platform_id platform, cl_device_type type, cl_uint entries, cl_device_id *devices, cl_uint *count) {
    cl_device_id mine[MOST_DEVICES];
    cl_uint found = 0;
    if (devices ? !entries : !count)
        return CL_INVALID_VALUE;
    if (aviary_may_use(NULL))
        return clGetDeviceIDs(platform, type, entries, devices, count);
    cl_int status = tenants_devices(platform, type, mine, &found);
    for (cl_uint d = 0; devices && d < found && d < entries; d++)
        devices[d] = mine[d];
    if (count)
        *count = found;
    return status;
}

void *opencl_device_ids_function(void) {
    return (void *)device_ids;
}

static cl_context CL_API_CALL context_from_type(const cl_context_properties *properties, cl_device_type type,
                                                void (CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *data,
                                                cl_int *error) {
    cl_device_id mine[MOST_DEVICES];
    cl_platform_id platform = NULL;
    cl_uint found = 0;
    if (aviary_may_use(NULL))
        return clCreateContextFromType(properties, type, notify, data, error);
    for (const cl_context_properties *p = properties; p && p[0] != 0; p += 2)
        if (p[0] == CL_CONTEXT_PLATFORM)
            platform = (cl_platform_id)p[1];
    cl_int status = platform ? CL_SUCCESS : clGetPlatformIDs(1, &platform, NULL);
    if (status == CL_SUCCESS)
        status = tenants_devices(platform, type, mine, &found);
    if (status == CL_SUCCESS)
        return clCreateContext(properties, found, mine, notify, data, error);
    if (error)
        *error = status;
    return NULL;
}

void *opencl_context_from_type_function(void) {
    return (void *)context_from_type;
}

/* A list of counts ends with a zero here, whether the application's does or not. */
static cl_int partition(cl_device_id device, const cl_device_partition_property *properties, cl_uint room, cl_device_id *parts,
                        cl_uint *count) {
    size_t words = opencl_partition_words(properties, SIZE_MAX / sizeof *properties);
    cl_device_partition_property *ended = calloc(words + 1, sizeof *ended);
    if (!ended)
        return CL_OUT_OF_HOST_MEMORY;
    if (words)
        memcpy(ended, properties, words * sizeof *ended);
    cl_int status = clCreateSubDevices(device, words ? ended : NULL, room, parts, count);
    free(ended);
    return status;
}

void *opencl_partition_function(void) {
    return (void *)partition;
}
