/* Objects in random orders of release: what keeps what alive, and that handles which were given back work as long as it does. Only
 * what OpenCL promises is done: a buffer is kept by its mappings, sub-buffers and images (PoCL 3.1 does not keep a mapped sub-buffer), a program by its kernels, a queue by events, a
 * context by all.
 * Usage: releases [ROUNDS] */
#include <unistd.h>

#include "common.h"

enum kind { CONTEXT, BUFFER, SUB, IMAGE, SAMPLER, PROGRAM, KERNEL, QUEUE, EVENT, MAPPING, KINDS };
enum { MOST = 64, STEPS = 120, BYTES = 4096 };

struct node {
    enum kind kind;
    void *handle;
    struct node *owner;
    int references, kept;
    unsigned char *bytes;
    size_t size;
};

static struct device device;
static struct node nodes[MOST];
static int count;
static unsigned long seed, trace;
static int destroyed;

static unsigned next(unsigned below) {
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(seed >> 33) % below;
}

static void note(const char *what, enum kind kind, long value) {
    char line[80];
    int length = snprintf(line, sizeof line, "%s %d %ld", what, kind, value);
    trace = trace * 1099511628211ul ^ digest(line, (size_t)length);
    if (value != 0 && strcmp(what, "content") != 0)
        printf("%s\n", line);
}

static void CL_CALLBACK ended(cl_mem memory, void *unused) {
    (void)memory, (void)unused;
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST);
}

static int is_alive(const struct node *node) {
    return node->handle && (node->references > 0 || node->kept > 0);
}

static struct node *add(enum kind kind, void *handle, struct node *owner) {
    struct node *node = &nodes[count++];
    *node = (struct node){.kind = kind, .handle = handle, .owner = owner, .references = kind != MAPPING};
    if (owner)
        owner->kept++;
    return node;
}

static void let_go(struct node *node) {
    for (; node && !is_alive(node) && node->handle; node = node->owner) {
        node->handle = NULL;
        if (node->owner)
            node->owner->kept--;
    }
}

static struct node *any(enum kind first, enum kind last) {
    struct node *found = NULL;
    int among = 0;
    for (int i = 0; i < count; i++)
        if (nodes[i].kind >= first && nodes[i].kind <= last && (is_alive(&nodes[i]) || (first == MAPPING && nodes[i].handle))
            && next((unsigned)++among) == 0)
            found = &nodes[i];
    return found;
}

static cl_int change(const struct node *node, int retains) {
    switch (node->kind) {
    case CONTEXT:
        return retains ? clRetainContext(node->handle) : clReleaseContext(node->handle);
    case SAMPLER:
        return retains ? clRetainSampler(node->handle) : clReleaseSampler(node->handle);
    case PROGRAM:
        return retains ? clRetainProgram(node->handle) : clReleaseProgram(node->handle);
    case KERNEL:
        return retains ? clRetainKernel(node->handle) : clReleaseKernel(node->handle);
    case QUEUE:
        return retains ? clRetainCommandQueue(node->handle) : clReleaseCommandQueue(node->handle);
    case EVENT:
        return retains ? clRetainEvent(node->handle) : clReleaseEvent(node->handle);
    default:
        return retains ? clRetainMemObject(node->handle) : clReleaseMemObject(node->handle);
    }
}

static void retain(void) {
    struct node *node = any(CONTEXT, EVENT);
    if (!node)
        return;
    note("retain", node->kind, change(node, 1));
    node->references++;
}

static void release(struct node *node) {
    if (!node || node->references == 0)
        return;
    note("release", node->kind, change(node, 0));
    node->references--;
    let_go(node);
}

static void create(void) {
    static const char *source = "kernel void k(global uchar *a) { a[get_global_id(0)] += 1; }";
    enum kind kind = (enum kind)(BUFFER + next(EVENT));
    enum kind of = kind == SUB || kind == IMAGE ? BUFFER : kind == KERNEL ? PROGRAM : kind == EVENT ? QUEUE : CONTEXT;
    struct node *owner = any(of, of);
    cl_int status = CL_SUCCESS;
    void *handle = NULL;
    size_t size = BYTES;
    if (!owner || count == MOST)
        return;
    if (kind == BUFFER) {
        cl_mem_flags flags[] = {0, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_ONLY};
        handle = clCreateBuffer(owner->handle, flags[next(3)], size, NULL, &status);
    } else if (kind == SUB) {
        cl_buffer_region region = {1024, 2048};
        size = region.size;
        handle = clCreateSubBuffer(owner->handle, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    } else if (kind == IMAGE) {
        cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
        cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 256, .buffer = owner->handle};
        size = 1024;
        handle = clCreateImage(owner->owner->handle, CL_MEM_READ_WRITE, &format, &desc, NULL, &status);
    } else if (kind == SAMPLER)
        handle = clCreateSampler(owner->handle, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &status);
    else if (kind == PROGRAM) {
        handle = clCreateProgramWithSource(owner->handle, 1, &source, NULL, &status);
        if (status == CL_SUCCESS)
            status = clBuildProgram(handle, 1, &device.device, NULL, NULL, NULL);
    } else if (kind == KERNEL)
        handle = clCreateKernel(owner->handle, "k", &status);
    else if (kind == QUEUE)
        handle = clCreateCommandQueue(owner->handle, device.device, 0, &status);
    else
        status = clEnqueueMarkerWithWaitList(owner->handle, 0, NULL, (cl_event *)&handle);
    note("create", kind, status);
    if (status != CL_SUCCESS)
        return;
    add(kind, handle, owner)->size = size;
    if (kind <= IMAGE)
        note("observe", kind, next(3) ? 0 : clSetMemObjectDestructorCallback(handle, ended, NULL));
}

static void map(void) {
    struct node *node = any(BUFFER, BUFFER);
    cl_int status;
    if (!node || count == MOST)
        return;
    unsigned char *bytes = clEnqueueMapBuffer(device.queue, node->handle, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, node->size, 0, NULL, NULL,
                                              &status);
    note("map", node->kind, status);
    if (status != CL_SUCCESS)
        return;
    memset(bytes, (int)next(256), node->size);
    struct node *mapping = add(MAPPING, node->handle, node);
    mapping->bytes = bytes;
    mapping->size = node->size;
}

static void unmap(struct node *mapping) {
    if (!mapping)
        return;
    note("unmap", mapping->kind, clEnqueueUnmapMemObject(device.queue, mapping->handle, mapping->bytes, 0, NULL, NULL));
    note("finish", mapping->kind, clFinish(device.queue));
    struct node *node = mapping->owner;
    mapping->handle = NULL;
    node->kept--;
    let_go(node);
}

static void ask(void) {
    struct node *node = any(CONTEXT, EVENT);
    void *answer = NULL;
    unsigned char content[64] = {0};
    size_t size = 0;
    cl_int status = CL_SUCCESS;
    if (!node)
        return;
    switch (node->kind) {
    case CONTEXT:
        status = clGetContextInfo(node->handle, CL_CONTEXT_DEVICES, sizeof answer, &answer, NULL);
        break;
    case BUFFER:
    case SUB:
    case IMAGE:
        status = clGetMemObjectInfo(node->handle, CL_MEM_SIZE, sizeof size, &size, NULL);
        note("size", node->kind, size != node->size);
        note("context", node->kind, clGetMemObjectInfo(node->handle, CL_MEM_CONTEXT, sizeof answer, &answer, NULL));
        if (node->kind == BUFFER)
            note("read", node->kind, clEnqueueReadBuffer(device.queue, node->handle, CL_TRUE, 0, sizeof content, content, 0, NULL, NULL));
        else
            note("parent", node->kind,
                 clGetMemObjectInfo(node->handle, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof answer, &answer, NULL) || answer != node->owner->handle);
        break;
    case SAMPLER:
        status = clGetSamplerInfo(node->handle, CL_SAMPLER_CONTEXT, sizeof answer, &answer, NULL) || answer != node->owner->handle;
        break;
    case PROGRAM:
        status = clGetProgramInfo(node->handle, CL_PROGRAM_CONTEXT, sizeof answer, &answer, NULL) || answer != node->owner->handle;
        break;
    case KERNEL:
        status = clGetKernelInfo(node->handle, CL_KERNEL_PROGRAM, sizeof answer, &answer, NULL) || answer != node->owner->handle;
        break;
    case QUEUE:
        status = clGetCommandQueueInfo(node->handle, CL_QUEUE_CONTEXT, sizeof answer, &answer, NULL) || answer != node->owner->handle;
        note("finish", node->kind, clFinish(node->handle));
        break;
    default:
        status = clGetEventInfo(node->handle, CL_EVENT_COMMAND_QUEUE, sizeof answer, &answer, NULL) || answer != node->owner->handle;
        note("finish", node->kind, clFinish(answer));
    }
    note("ask", node->kind, status);
}

static void round_of(unsigned long number) {
    cl_int status;
    seed = number * 7919 + 1;
    trace = 0;
    count = 0;
    cl_context context = clCreateContext(NULL, 1, &device.device, NULL, NULL, &status);
    MUST(status);
    struct node *of_round = add(CONTEXT, context, NULL);
    cl_command_queue queue = clCreateCommandQueue(context, device.device, 0, &status);
    MUST(status);
    device.queue = queue;
    of_round->kept++;
    for (int step = 0; step < STEPS; step++)
        switch (next(8)) {
        case 0:
            retain();
            break;
        case 1:
        case 2:
            release(any(CONTEXT, EVENT));
            break;
        case 3:
            map();
            break;
        case 4:
            unmap(any(MAPPING, MAPPING));
            break;
        case 5:
        case 6:
            create();
            break;
        default:
            ask();
        }
    for (struct node *mapping; (mapping = any(MAPPING, MAPPING)) != NULL;)
        unmap(mapping);
    MUST(clReleaseCommandQueue(queue));
    of_round->kept--;
    let_go(of_round);
    for (int left = 1; left;) {
        struct node *node = any(CONTEXT, EVENT);
        left = node != NULL;
        release(node);
    }
    printf("round %lu: %lx\n", number, trace);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 12;
    MUST(clGetPlatformIDs(1, &device.platform, NULL));
    MUST(clGetDeviceIDs(device.platform, CL_DEVICE_TYPE_ALL, 1, &device.device, NULL));
    for (int number = 0; number < rounds; number++)
        round_of((unsigned long)number);
    /* Callbacks of the last releases may come late: all have come when there is no new one for a second. */
    for (int before = -1, now; before != (now = __atomic_load_n(&destroyed, __ATOMIC_SEQ_CST)); before = now)
        sleep(1);
    printf("%d destroyed\n", destroyed);
    return 0;
}
