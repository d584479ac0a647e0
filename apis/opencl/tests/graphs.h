/* The state of one random graph (graphs.c): its objects, how they begin, and what is told of it at its end. */
#ifndef GRAPHS_H
#define GRAPHS_H

#include <pthread.h>

enum {
    MAX_COMMANDS = 64,
    MAX_GATES = 6,
    MAX_WAITS = 24,
    MAX_READERS = 12,
    MAX_MAPPED = 3,
    BUFFERS = 4,
    /* The last two are not the graph's commands': for markers that stand for several events, and for what callbacks enqueue. */
    QUEUES = 4,
    MARKERS = QUEUES,
    CALLBACKS,
    ALL_QUEUES,
    IMAGE_SIDE = 32,
    IMAGE_BYTES = IMAGE_SIDE * IMAGE_SIDE * 4,
    SVM_BYTES = 4096,
    RESULTS = 32 << 20,
};

struct command {
    int queue;
    cl_event event;
    /* The event is a marker's behind the command. */
    int stands_in;
    /* One bit for each user event that the command waits for. */
    unsigned long gates;
    int waits;
    cl_event wait[MAX_WAITS];
    int predecessors;
    struct command *after[MAX_WAITS];
    int wants_event, blocks, mapping;
    void *result;
    size_t result_bytes;
    /* The event that the callbacks are registered with, and the digest that the last of them saw. */
    cl_event called_with;
    int has_seen;
    unsigned long seen;
};

/* Something that commands use: who wrote it last and who has read it since. */
struct resource {
    struct command *writer, *reader[MAX_READERS];
    int readers;
};

struct buffer {
    cl_mem memory;
    size_t size;
    int is_mapped;
    struct resource resource;
};

struct queue {
    cl_command_queue queue;
    int in_order, profiled;
    /* User events: of everything enqueued; that whatever comes next waits for, too; of the last barrier. */
    unsigned long all, gates, barrier;
};

struct mapping {
    struct command *command;
    struct buffer *buffer;
    cl_map_flags flags;
    void *pointer;
    size_t bytes;
};

struct graph {
    unsigned seed;
    unsigned long random, hash, open;
    struct queue queues[ALL_QUEUES];
    struct buffer buffers[BUFFERS], image;
    struct command commands[MAX_COMMANDS + 32], gate[MAX_GATES];
    struct mapping mappings[MAX_MAPPED];
    int count, gates, mapped;
    void *svm, *host;
    struct resource shared;
    cl_kernel step, mix, add, step_svm, mix_svm;
    cl_mem sums;
    pthread_mutex_t adding;
    cl_event kept_events[4 * MAX_COMMANDS], additions[MAX_COMMANDS];
    int kept, added;
    int callbacks, expected_callbacks, strange_handles, strange_statuses;
    size_t results;
};

extern struct graph g;
unsigned pick(unsigned below);
void finish_command(struct command *c);

static char results[RESULTS] __attribute__((aligned(64)));

static void note(unsigned long value) {
    g.hash = (g.hash ^ value) * 1099511628211ul;
}

/* Memory of the graph's own for a transfer. */
static void *result_of(size_t size) {
    void *at = results + g.results;
    g.results += (size + 63) & ~63ul;
    if (g.results > RESULTS)
        abort();
    return at;
}

static cl_mem new_buffer(struct device *d, size_t size, int kind) {
    unsigned *content = result_of(size);
    for (size_t i = 0; i < size / 4; i++)
        content[i] = (unsigned)i * 40503u + g.seed;
    if (kind == 1) {
        g.host = memcpy(result_of(size), content, size);
        return buffer_of(d, CL_MEM_USE_HOST_PTR, size, g.host);
    }
    return buffer_of(d, CL_MEM_COPY_HOST_PTR | (kind == 2 ? CL_MEM_ALLOC_HOST_PTR : 0), size, content);
}

static void begin_graph(struct device *d, cl_program program, unsigned seed, int with_svm) {
    static const size_t sizes[] = {1024, 4096, 8192, 65536, 512 << 10};
    cl_int status;
    g = (struct graph){.seed = seed, .random = seed * 0x9e3779b97f4a7c15ul + 1, .hash = 14695981039346656037ul};
    pthread_mutex_init(&g.adding, NULL);
    pick(2);
    int profiled = !pick(2);
    for (int i = 0; i < ALL_QUEUES; i++) {
        int in_order = i == MARKERS ? 0 : i == CALLBACKS || i < 2 || pick(2);
        cl_command_queue_properties properties = (in_order ? 0 : CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) | (profiled ? CL_QUEUE_PROFILING_ENABLE : 0);
        g.queues[i] = (struct queue){.in_order = in_order, .profiled = profiled};
        g.queues[i].queue = clCreateCommandQueue(d->context, d->device, properties, &status);
        MUST(status);
    }
    for (int i = 0; i < BUFFERS; i++) {
        g.buffers[i].size = sizes[pick(24) ? pick(4) : 4];
        g.buffers[i].memory = new_buffer(d, g.buffers[i].size, i);
    }
    cl_image_format format = {CL_RGBA, CL_UNORM_INT8};
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = IMAGE_SIDE, .image_height = IMAGE_SIDE};
    g.image.size = IMAGE_BYTES;
    g.image.memory = clCreateImage(d->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, &format, &desc,
                                   memset(result_of(IMAGE_BYTES), 7, IMAGE_BYTES), &status);
    MUST(status);
    g.sums = new_buffer(d, 256, 0);
    g.step = kernel_of(program, "grow");
    g.mix = kernel_of(program, "fold");
    g.add = kernel_of(program, "sum");
    g.step_svm = kernel_of(program, "grow");
    g.mix_svm = kernel_of(program, "fold");
    if (with_svm) {
        g.svm = clSVMAlloc(d->context, CL_MEM_READ_WRITE, SVM_BYTES, 0);
        if (!g.svm) {
            printf("no SVM\n");
            exit(1);
        }
        MUST(clEnqueueSVMMemFill(g.queues[0].queue, g.svm, "begin...", 8, SVM_BYTES, 0, NULL, NULL));
        MUST(clFinish(g.queues[0].queue));
    }
}

/* Commands that began before one that they wait for had ended. */
static int out_of_order(void) {
    int found = 0;
    for (int i = 0; i < g.count; i++) {
        struct command *c = &g.commands[i];
        if (!c->event || c->stands_in || !g.queues[c->queue].profiled)
            continue;
        cl_ulong began, ended;
        MUST(clGetEventProfilingInfo(c->event, CL_PROFILING_COMMAND_START, sizeof began, &began, NULL));
        for (int p = 0; p < c->predecessors; p++) {
            const struct command *earlier = c->after[p];
            if (earlier->queue < 0 || !earlier->event || earlier->stands_in || earlier == c)
                continue;
            MUST(clGetEventProfilingInfo(earlier->event, CL_PROFILING_COMMAND_END, sizeof ended, &ended, NULL));
            found += ended > began;
        }
    }
    return found;
}

static void release_event(cl_event event) {
    if (event)
        MUST(clReleaseEvent(event));
}

/* Waits for everything, tells what came of it, and ends the objects. */
static void end_graph(struct device *d) {
    (void)d;
    if (g.added)
        MUST(clWaitForEvents((cl_uint)g.added, g.additions));
    for (int i = 0; i < ALL_QUEUES; i++)
        MUST(clFinish(g.queues[i].queue));
    for (int waited = 0; __atomic_load_n(&g.callbacks, __ATOMIC_SEQ_CST) < g.expected_callbacks && waited < 60000; waited++)
        usleep(1000);
    int unseen = 0;
    for (int i = 0; i < g.count; i++) {
        struct command *c = &g.commands[i];
        cl_command_type type = 0;
        cl_int status = 0;
        if (c->result)
            note(digest(c->result, c->result_bytes));
        unseen += c->has_seen && c->result && c->seen != digest(c->result, c->result_bytes);
        if (!c->event)
            continue;
        MUST(clGetEventInfo(c->event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
        MUST(clGetEventInfo(c->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
        note(type);
        note((unsigned long)status);
    }
    for (int i = 0; i < BUFFERS; i++) {
        char *content = malloc(g.buffers[i].size);
        MUST(clEnqueueReadBuffer(g.queues[0].queue, g.buffers[i].memory, CL_TRUE, 0, g.buffers[i].size, content, 0, NULL, NULL));
        note(digest(content, g.buffers[i].size));
        free(content);
    }
    char sums[256];
    MUST(clEnqueueReadBuffer(g.queues[0].queue, g.sums, CL_TRUE, 0, sizeof sums, sums, 0, NULL, NULL));
    note(digest(sums, sizeof sums));
    if (g.svm) {
        MUST(clEnqueueSVMMap(g.queues[0].queue, CL_TRUE, CL_MAP_READ, g.svm, SVM_BYTES, 0, NULL, NULL));
        note(digest(g.svm, SVM_BYTES));
        MUST(clEnqueueSVMUnmap(g.queues[0].queue, g.svm, 0, NULL, NULL));
        MUST(clFinish(g.queues[0].queue));
    }
    printf("graph %u: %d commands %lx, callbacks %d of %d, strange %d %d, unseen %d, out of order %d\n", g.seed, g.count, g.hash,
           g.callbacks, g.expected_callbacks, g.strange_handles, g.strange_statuses, unseen, out_of_order());
    for (int i = 0; i < g.count; i++)
        release_event(g.commands[i].event);
    for (int i = 0; i < g.gates; i++)
        release_event(g.gate[i].event);
    for (int i = 0; i < g.kept; i++)
        release_event(g.kept_events[i]);
    cl_kernel kernels[] = {g.step, g.mix, g.add, g.step_svm, g.mix_svm};
    for (int i = 0; i < 5; i++)
        MUST(clReleaseKernel(kernels[i]));
    for (int i = 0; i < BUFFERS; i++)
        MUST(clReleaseMemObject(g.buffers[i].memory));
    MUST(clReleaseMemObject(g.image.memory));
    MUST(clReleaseMemObject(g.sums));
    for (int i = 0; i < ALL_QUEUES; i++)
        MUST(clReleaseCommandQueue(g.queues[i].queue));
    if (g.svm)
        clSVMFree(d->context, g.svm);
}

#endif
