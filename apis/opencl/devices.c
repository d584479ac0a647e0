/* What the node's device scheduler needs to know: which device a queue works for, and when it has finished. */

/* Queues that got work since the last wait for their device. */
struct busy_queue {
    cl_command_queue queue;
    cl_device_id device;
};
static struct {
    pthread_mutex_t lock;
    struct busy_queue *queues;
    size_t count, room;
    /* The application may hold commands back. */
    int user_events;
} busy = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The device that the queue's commands occupy. */
uint64_t opencl_device(cl_command_queue queue) {
    cl_device_id device = NULL;
    if (clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL) != CL_SUCCESS)
        return 0;
    return (uint64_t)(uintptr_t)device;
}

/* The queue is about to get work: it is waited for when its device is. */
void opencl_begin(cl_command_queue queue) {
    cl_device_id device = (cl_device_id)(uintptr_t)opencl_device(queue);
    pthread_mutex_lock(&busy.lock);
    size_t at = 0;
    while (at < busy.count && busy.queues[at].queue != queue)
        at++;
    if (at == busy.count && busy.count == busy.room) {
        size_t room = busy.room ? 2 * busy.room : 8;
        struct busy_queue *larger = realloc(busy.queues, room * sizeof *larger);
        if (larger) {
            busy.queues = larger;
            busy.room = room;
        }
    }
    /* Without memory the queue is not waited for: its work counts as what comes after it. */
    if (at == busy.count && busy.count < busy.room && clRetainCommandQueue(queue) == CL_SUCCESS)
        busy.queues[busy.count++] = (struct busy_queue){queue, device};
    pthread_mutex_unlock(&busy.lock);
}

void opencl_note_user_event(void) {
    __atomic_store_n(&busy.user_events, 1, __ATOMIC_RELAXED);
}

/* As clFinish, but for so long only: a command may wait for an event that the application sets with a later call. */
#define PATIENCE_US 20000
#define LOOK_US 50
static int finish_if_possible(cl_command_queue queue) {
    cl_event last = NULL;
    cl_int status = CL_QUEUED;
    if (clEnqueueMarkerWithWaitList(queue, 0, NULL, &last) != CL_SUCCESS)
        return 0;
    clFlush(queue);
    for (int waited = 0; waited < PATIENCE_US && status > CL_COMPLETE; waited += LOOK_US) {
        if (clGetEventInfo(last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) != CL_SUCCESS)
            break;
        if (status > CL_COMPLETE)
            usleep(LOOK_US);
    }
    clReleaseEvent(last);
    return status <= CL_COMPLETE;
}

/* Waits until the device has done what this process gave it; non-zero: it could not wait for all of it. */
int opencl_drain(uint64_t device) {
    int incomplete = 0;
    pthread_mutex_lock(&busy.lock);
    struct busy_queue mine[64];
    size_t count = 0;
    for (size_t at = 0; at < busy.count;) {
        if (busy.queues[at].device == (cl_device_id)(uintptr_t)device && count < sizeof mine / sizeof *mine) {
            mine[count++] = busy.queues[at];
            busy.queues[at] = busy.queues[--busy.count];
        } else {
            at++;
        }
    }
    pthread_mutex_unlock(&busy.lock);
    /* One queue may wait for an event of another, which begins when it is flushed. */
    for (size_t i = 0; i < count && count > 1; i++)
        clFlush(mine[i].queue);
    for (size_t i = 0; i < count; i++) {
        if (__atomic_load_n(&busy.user_events, __ATOMIC_RELAXED))
            incomplete |= !finish_if_possible(mine[i].queue);
        else
            clFinish(mine[i].queue);
        clReleaseCommandQueue(mine[i].queue);
    }
    return incomplete;
}

/* ---- Names ------------------------------------------------------------------------------------ */

#define MOST_DEVICES 64
#define NAME_BYTES 64

/* The device that this one is a part of, or the device itself. */
static cl_device_id whole(cl_device_id device) {
    cl_device_id parent = NULL;
    while (clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof parent, &parent, NULL) == CL_SUCCESS && parent)
        device = parent;
    return device;
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
            clGetDeviceInfo(devices[d], CL_DEVICE_NAME, sizeof other - 1, other, NULL);
            same += strcmp(other, name) == 0;
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
            if (clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL) != CL_SUCCESS)
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

/* Of its memory a device says what the tenant may have of it. */
static cl_int CL_API_CALL device_info(cl_device_id device, cl_device_info name, size_t bytes, void *value, size_t *needed) {
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
