/* Random graphs of commands. Each seed is a graph: commands of all kinds on several queues, in and out of order, behind events of other
 * commands and behind user events that the same thread, another thread or a callback sets later. One line per graph says what came of
 * it; a run through Aviary must print the same lines as a native one, and end.
 *   graphs FIRST COUNT [svm] [verbose]
 *
 * Graphs are well defined: commands with a conflict are ordered by events or by an in-order queue, no call that blocks is made while
 * something that it waits for is held back, and mapped memory is used after its event only. Left out, because PoCL 3.1 itself does not
 * survive it or leaves it open: user events that fail (it calls no callbacks then), questions about *other* events inside callbacks of
 * CL_SUBMITTED and CL_RUNNING (it holds locks of events there), and waiting inside callbacks (OpenCL forbids it).
 *
 * The order of two commands is checked where one waits for the other, by the times of profiled queues. */
#include "common.h"
#include "graphs.h"
#include <pthread.h>

static const char *SOURCE =
    "kernel void grow(global uint *a, uint k) { size_t i = get_global_id(0); a[i] = a[i] * 3u + k + (uint)i; }\n"
    "kernel void fold(global uint *a, global const uint *b) { size_t i = get_global_id(0); a[i] ^= b[i] + 7u * (uint)i; }\n"
    "kernel void sum(global uint *a, uint k) { atomic_add((volatile global uint *)&a[get_global_id(0)], k); }\n";

struct graph g;
static struct device device;
static cl_program program;
static int with_svm, verbose;

unsigned pick(unsigned below) {
    g.random = g.random * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(g.random >> 33) % below;
}

/* ---- What a command has to wait for ------------------------------------------------------------ */

/* The user events that the command waits for, directly or not, and that nobody has set: one bit for each. */
static int is_held_back(const struct command *c) {
    return (c->gates & ~g.open) != 0;
}

static cl_event event_of(struct command *c) {
    if (!c->event) {
        /* The marker comes behind everything that the queue has by now. */
        MUST(clEnqueueMarkerWithWaitList(g.queues[c->queue].queue, 0, NULL, &c->event));
        c->stands_in = 1;
        c->gates |= g.queues[c->queue].gates;
    }
    return c->event;
}

static int is_ordered_by_queue(const struct command *c, int queue) {
    return c->queue == queue && g.queues[queue].in_order;
}

static void wait_behind(struct command *c, struct command *earlier) {
    if (!earlier)
        return;
    if (c->predecessors < MAX_WAITS)
        c->after[c->predecessors++] = earlier;
    if (is_ordered_by_queue(earlier, c->queue))
        return;
    cl_event event = event_of(earlier);
    c->gates |= earlier->gates;
    if (c->waits == MAX_WAITS) {
        /* One marker stands for all of them. */
        cl_event all;
        MUST(clEnqueueMarkerWithWaitList(g.queues[MARKERS].queue, (cl_uint)c->waits, c->wait, &all));
        g.kept_events[g.kept++] = c->wait[0] = all;
        c->waits = 1;
    }
    c->wait[c->waits++] = event;
}

/* The command uses the resource: it comes after the last writer and, if it writes, after all readers. */
static void use(struct command *c, struct resource *r, int writes) {
    wait_behind(c, r->writer);
    if (!writes) {
        if (r->readers == MAX_READERS) {
            for (int i = 0; i < r->readers; i++)
                wait_behind(c, r->reader[i]);
            r->readers = 0;
        }
        r->reader[r->readers++] = c;
        return;
    }
    for (int i = 0; i < r->readers; i++)
        wait_behind(c, r->reader[i]);
    r->readers = 0;
    r->writer = c;
}

/* ---- Callbacks ---------------------------------------------------------------------------------- */

static void CL_CALLBACK count(cl_event event, cl_int status, void *data) {
    struct command *c = data;
    /* A callback gets the handle that the program knows. */
    if (event != c->called_with)
        __atomic_add_fetch(&g.strange_handles, 1, __ATOMIC_SEQ_CST);
    if (status != CL_SUBMITTED && status != CL_RUNNING && status != CL_COMPLETE)
        __atomic_add_fetch(&g.strange_statuses, 1, __ATOMIC_SEQ_CST);
    /* The result of a read is there when its callback runs. */
    if (status == CL_COMPLETE && c->result)
        c->seen = digest(c->result, c->result_bytes);
    __atomic_add_fetch(&g.callbacks, 1, __ATOMIC_SEQ_CST);
}

/* Sets a user event. */
static void CL_CALLBACK opens(cl_event event, cl_int status, void *data) {
    (void)event;
    (void)status;
    MUST(clSetUserEventStatus(data, CL_COMPLETE));
    __atomic_add_fetch(&g.callbacks, 1, __ATOMIC_SEQ_CST);
}

/* Enqueues, and asks about its own event. */
static void CL_CALLBACK enqueues(cl_event event, cl_int status, void *data) {
    (void)status;
    cl_command_type type = 0;
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
    cl_uint k = 5;
    size_t size = 64;
    pthread_mutex_lock(&g.adding);
    MUST(clSetKernelArg(g.add, 0, sizeof g.sums, &g.sums));
    MUST(clSetKernelArg(g.add, 1, sizeof k, &k));
    MUST(clEnqueueNDRangeKernel(g.queues[CALLBACKS].queue, g.add, 1, NULL, &size, NULL, 0, NULL, NULL));
    pthread_mutex_unlock(&g.adding);
    MUST(clFlush(g.queues[CALLBACKS].queue));
    MUST(clSetUserEventStatus(data, CL_COMPLETE));
    __atomic_add_fetch(&g.callbacks, 1, __ATOMIC_SEQ_CST);
}

static void register_callbacks(struct command *c) {
    static const cl_int statuses[] = {CL_SUBMITTED, CL_RUNNING, CL_COMPLETE};
    if (!c->event || pick(3))
        return;
    c->called_with = c->event;
    for (int i = 0; i < 3; i++)
        if (i == 2 || pick(2)) {
            MUST(clSetEventCallback(c->event, statuses[i], count, c));
            g.expected_callbacks++;
            c->has_seen |= i == 2;
        }
    if (!pick(4)) {
        cl_int status;
        g.kept_events[g.kept] = clCreateUserEvent(device.context, &status);
        MUST(status);
        MUST(clSetEventCallback(c->event, CL_COMPLETE, enqueues, g.kept_events[g.kept]));
        g.additions[g.added++] = g.kept_events[g.kept++];
        g.expected_callbacks++;
    }
}

/* ---- User events -------------------------------------------------------------------------------- */

static void new_gate(void) {
    cl_int status;
    if (g.gates == MAX_GATES)
        return;
    struct command *gate = &g.gate[g.gates];
    *gate = (struct command){.queue = -1, .gates = 1ul << g.gates};
    gate->event = clCreateUserEvent(device.context, &status);
    MUST(status);
    struct command *opener = g.count && !pick(3) ? &g.commands[pick((unsigned)g.count)] : NULL;
    if (opener && opener->event) {
        /* Opened by a callback: held back by what its command waits for. */
        gate->gates = opener->gates;
        g.open |= 1ul << g.gates;
        MUST(clSetEventCallback(opener->event, CL_COMPLETE, opens, gate->event));
        g.expected_callbacks++;
    }
    g.gates++;
}

static void *open_gate(void *gate) {
    MUST(clSetUserEventStatus(gate, CL_COMPLETE));
    return NULL;
}

static void open_one(void) {
    unsigned long closed = ((1ul << g.gates) - 1) & ~g.open;
    if (!closed)
        return;
    int n = __builtin_ctzl(closed);
    g.open |= 1ul << n;
    if (pick(4)) {
        open_gate(g.gate[n].event);
        return;
    }
    pthread_t other;
    if (pthread_create(&other, NULL, open_gate, g.gate[n].event))
        abort();
    pthread_join(other, NULL);
}

/* ---- Commands ------------------------------------------------------------------------------------ */

static struct command *new_command(void) {
    struct command *c = &g.commands[g.count];
    *c = (struct command){.queue = (int)pick(QUEUES)};
    struct queue *q = &g.queues[c->queue];
    /* An in-order queue holds back what comes behind a command that is held back. */
    c->gates = q->in_order ? q->gates : q->barrier;
    while (!pick(3) && g.count && c->waits < 3)
        wait_behind(c, &g.commands[pick((unsigned)g.count)]);
    if (g.gates && !pick(3)) {
        struct command *gate = &g.gate[pick((unsigned)g.gates)];
        c->gates |= gate->gates;
        c->wait[c->waits++] = gate->event;
    }
    c->wants_event = !q->in_order || pick(4) != 0;
    return c;
}

/* PoCL waits for all of the queue. */
static int may_block(const struct command *c) {
    return !is_held_back(c) && !(g.queues[c->queue].all & ~g.open) && pick(3) == 0;
}

/* A buffer that is not mapped: commands must leave the others alone. */
static struct buffer *any_buffer(void) {
    unsigned n = pick(BUFFERS);
    while (g.buffers[n].is_mapped)
        n = (n + 1) % BUFFERS;
    return &g.buffers[n];
}

/* Arguments of every kind of command: the events that it waits for, and the place of its own. */
#define WAIT (cl_uint)c->waits, c->waits ? c->wait : NULL
#define EVENT (c->wants_event ? &c->event : NULL)

static void read_buffer(struct command *c, cl_command_queue q, struct buffer *b) {
    size_t offset = 4 * pick(b->size / 8), size = 4 + 4 * pick((b->size - offset) / 4);
    use(c, &b->resource, 0);
    c->result = result_of(size);
    c->result_bytes = size;
    c->blocks = may_block(c);
    MUST(clEnqueueReadBuffer(q, b->memory, c->blocks, offset, size, c->result, WAIT, EVENT));
}

static void write_buffer(struct command *c, cl_command_queue q, struct buffer *b) {
    size_t offset = 4 * pick(b->size / 8), size = 4 + 4 * pick((b->size - offset) / 4);
    unsigned *from = result_of(size);
    for (size_t i = 0; i < size / 4; i++)
        from[i] = (unsigned)i * 2654435761u + g.seed;
    use(c, &b->resource, 1);
    c->blocks = may_block(c);
    MUST(clEnqueueWriteBuffer(q, b->memory, c->blocks, offset, size, from, WAIT, EVENT));
}

static void move_rectangle(struct command *c, cl_command_queue q, struct buffer *b, int writes) {
    size_t origin[3] = {4 * pick(4), pick(4), 0}, host[3] = {0}, region[3] = {4 + 4 * pick(8), 1 + pick(4), 1};
    size_t bytes = region[0] * region[1];
    use(c, &b->resource, writes);
    c->blocks = may_block(c);
    void *memory = result_of(bytes);
    if (writes) {
        memset(memory, (int)pick(256), bytes);
        MUST(clEnqueueWriteBufferRect(q, b->memory, c->blocks, origin, host, region, 64, 0, 0, 0, memory, WAIT, EVENT));
        return;
    }
    c->result = memory;
    c->result_bytes = bytes;
    MUST(clEnqueueReadBufferRect(q, b->memory, c->blocks, origin, host, region, 64, 0, 0, 0, memory, WAIT, EVENT));
}

static void launch(struct command *c, cl_command_queue q, struct buffer *b) {
    size_t size = b->size / 4;
    struct buffer *other = any_buffer();
    if (pick(2) && other != b && other->size >= b->size) {
        use(c, &b->resource, 1);
        use(c, &other->resource, 0);
        MUST(clSetKernelArg(g.mix, 0, sizeof b->memory, &b->memory));
        MUST(clSetKernelArg(g.mix, 1, sizeof other->memory, &other->memory));
        MUST(clEnqueueNDRangeKernel(q, g.mix, 1, NULL, &size, NULL, WAIT, EVENT));
        return;
    }
    cl_uint k = pick(1000);
    use(c, &b->resource, 1);
    MUST(clSetKernelArg(g.step, 0, sizeof b->memory, &b->memory));
    MUST(clSetKernelArg(g.step, 1, sizeof k, &k));
    MUST(clEnqueueNDRangeKernel(q, g.step, 1, NULL, &size, pick(2) ? &(size_t){4} : NULL, WAIT, EVENT));
}

static void copy_buffer(struct command *c, cl_command_queue q, struct buffer *b) {
    struct buffer *other = any_buffer();
    if (other == b)
        return write_buffer(c, q, b);
    size_t most = b->size < other->size ? b->size : other->size, size = 4 + 4 * pick(most / 4);
    use(c, &b->resource, 0);
    use(c, &other->resource, 1);
    MUST(clEnqueueCopyBuffer(q, b->memory, other->memory, b->size - size, other->size - size, size, WAIT, EVENT));
}

static void image_command(struct command *c, cl_command_queue q) {
    size_t origin[3] = {0}, region[3] = {IMAGE_SIDE, IMAGE_SIDE, 1};
    struct buffer *b = any_buffer();
    switch (pick(b->size >= IMAGE_BYTES ? 4 : 3)) {
    case 0:
        use(c, &g.image.resource, 0);
        c->result = result_of(IMAGE_BYTES);
        c->result_bytes = IMAGE_BYTES;
        c->blocks = may_block(c);
        MUST(clEnqueueReadImage(q, g.image.memory, c->blocks, origin, region, 0, 0, c->result, WAIT, EVENT));
        return;
    case 1: {
        void *from = memset(result_of(IMAGE_BYTES), (int)pick(256), IMAGE_BYTES);
        use(c, &g.image.resource, 1);
        c->blocks = may_block(c);
        MUST(clEnqueueWriteImage(q, g.image.memory, c->blocks, origin, region, 0, 0, from, WAIT, EVENT));
        return;
    }
    case 2:
        use(c, &g.image.resource, 1);
        MUST(clEnqueueFillImage(q, g.image.memory, (float[4]){1, 0, 0, 1}, origin, region, WAIT, EVENT));
        return;
    default:
        use(c, &g.image.resource, 0);
        use(c, &b->resource, 1);
        MUST(clEnqueueCopyImageToBuffer(q, g.image.memory, b->memory, origin, region, 0, WAIT, EVENT));
    }
}

/* Maps; `finish_mapping` goes on. */
static void map_something(struct command *c, cl_command_queue q, struct buffer *b) {
    struct mapping *m = &g.mappings[g.mapped];
    if (g.mapped == MAX_MAPPED)
        return read_buffer(c, q, b);
    cl_int status;
    *m = (struct mapping){.command = c, .buffer = pick(4) || g.image.is_mapped ? b : &g.image};
    m->flags = pick(2) ? CL_MAP_READ : pick(2) ? CL_MAP_WRITE : CL_MAP_WRITE_INVALIDATE_REGION;
    c->wants_event = c->mapping = 1;
    use(c, &m->buffer->resource, 1);
    c->blocks = may_block(c);
    if (m->buffer == &g.image) {
        size_t origin[3] = {0}, region[3] = {IMAGE_SIDE, IMAGE_SIDE, 1}, pitch, slice;
        m->bytes = IMAGE_BYTES;
        m->pointer = clEnqueueMapImage(q, g.image.memory, c->blocks, m->flags, origin, region, &pitch, &slice, WAIT, EVENT, &status);
    } else {
        size_t offset = 4 * pick(b->size / 8);
        m->bytes = 4 + 4 * pick((b->size - offset) / 4);
        m->pointer = clEnqueueMapBuffer(q, b->memory, c->blocks, m->flags, offset, m->bytes, WAIT, EVENT, &status);
    }
    MUST(status);
    m->buffer->is_mapped = 1;
    g.mapped++;
}

/* Uses the memory, if it is there already or has to be, and unmaps it. */
static void finish_mapping(int n, int at_end) {
    struct mapping m = g.mappings[n];
    /* Not used at all: the unmapping only waits. */
    int uses = !is_held_back(m.command) && (at_end || pick(2));
    if (uses) {
        MUST(clWaitForEvents(1, &m.command->event));
        if (m.flags == CL_MAP_READ)
            note(digest(m.pointer, m.bytes));
        else
            memset(m.pointer, (int)pick(256), m.bytes);
    } else if (m.flags == CL_MAP_WRITE_INVALIDATE_REGION && !at_end) {
        /* Its content would be anything. */
        return;
    }
    struct command *c = new_command();
    use(c, &m.buffer->resource, 1);
    if (!uses)
        wait_behind(c, m.command);
    MUST(clEnqueueUnmapMemObject(g.queues[c->queue].queue, m.buffer->memory, m.pointer, WAIT, EVENT));
    m.buffer->is_mapped = 0;
    finish_command(c);
    g.mappings[n] = g.mappings[--g.mapped];
}

static void order_command(struct command *c, cl_command_queue queue) {
    struct queue *q = &g.queues[c->queue];
    int barrier = (int)pick(2);
    if (!c->waits)
        c->gates |= q->all;
    if (barrier) {
        MUST(clEnqueueBarrierWithWaitList(queue, WAIT, EVENT));
        q->barrier |= c->gates;
        return;
    }
    MUST(clEnqueueMarkerWithWaitList(queue, WAIT, EVENT));
}

static void buffer_command(struct command *c, cl_command_queue q) {
    struct buffer *b = any_buffer();
    switch (pick(10)) {
    case 0:
    case 1:
        return read_buffer(c, q, b);
    case 2:
        return write_buffer(c, q, b);
    case 3:
        return move_rectangle(c, q, b, (int)pick(2));
    case 4:
        use(c, &b->resource, 1);
        MUST(clEnqueueFillBuffer(q, b->memory, "fill", 4, 0, b->size & ~3ul, WAIT, EVENT));
        return;
    case 5:
        return copy_buffer(c, q, b);
    case 6:
        use(c, &b->resource, 1);
        MUST(clEnqueueMigrateMemObjects(q, 1, &b->memory, 0, WAIT, EVENT));
        return;
    case 7:
        return map_something(c, q, b);
    default:
        return launch(c, q, b);
    }
}

static void svm_command(struct command *c, cl_command_queue q) {
    struct buffer *b = any_buffer();
    size_t size = SVM_BYTES / 4;
    cl_uint k = pick(1000);
    use(c, &g.shared, 1);
    switch (pick(5)) {
    case 0:
        MUST(clEnqueueSVMMemFill(q, g.svm, "svmfill!", 8, SVM_BYTES, WAIT, EVENT));
        return;
    case 1:
        c->result = result_of(SVM_BYTES);
        c->result_bytes = SVM_BYTES;
        c->blocks = may_block(c);
        MUST(clEnqueueSVMMemcpy(q, c->blocks, c->result, g.svm, SVM_BYTES, WAIT, EVENT));
        return;
    case 2:
        MUST(clEnqueueSVMMemcpy(q, CL_FALSE, (char *)g.svm + SVM_BYTES / 2, g.svm, SVM_BYTES / 2, WAIT, EVENT));
        return;
    case 3:
        use(c, &b->resource, 0);
        size = b->size / 4 < size ? b->size / 4 : size;
        MUST(clSetKernelArgSVMPointer(g.mix_svm, 0, g.svm));
        MUST(clSetKernelArg(g.mix_svm, 1, sizeof b->memory, &b->memory));
        MUST(clEnqueueNDRangeKernel(q, g.mix_svm, 1, NULL, &size, NULL, WAIT, EVENT));
        return;
    default:
        MUST(clSetKernelArgSVMPointer(g.step_svm, 0, g.svm));
        MUST(clSetKernelArg(g.step_svm, 1, sizeof k, &k));
        MUST(clEnqueueNDRangeKernel(q, g.step_svm, 1, NULL, &size, NULL, WAIT, EVENT));
    }
}

static void add_command(void) {
    struct command *c = new_command();
    cl_command_queue q = g.queues[c->queue].queue;
    unsigned kind = pick(12);
    if (kind == 0)
        order_command(c, q);
    else if (kind <= 2 && !g.image.is_mapped)
        image_command(c, q);
    else if (kind <= 4 && with_svm)
        svm_command(c, q);
    else
        buffer_command(c, q);
    finish_command(c);
}

/* The command is enqueued. */
void finish_command(struct command *c) {
    struct queue *q = &g.queues[c->queue];
    q->all |= c->gates;
    q->gates |= c->gates;
    g.count++;
    if (verbose)
        fprintf(stderr, "  command %d queue %d waits %d gates %lx%s\n", g.count - 1, c->queue, c->waits, c->gates, c->blocks ? " blocks" : "");
    register_callbacks(c);
    if (c->event && q->in_order && !c->mapping && !pick(5)) {
        /* The program does not need it any more: the command may still be held back, and its callbacks have not run. */
        MUST(clReleaseEvent(c->event));
        c->event = NULL;
    }
    if (!pick(4))
        MUST(clFlush(q->queue));
}

/* ---- A graph ------------------------------------------------------------------------------------- */

static void run_graph(unsigned seed) {
    begin_graph(&device, program, seed, with_svm);
    int length = 4 + (int)pick(MAX_COMMANDS - 24);
    while (g.count < length) {
        unsigned what = pick(16);
        if (what == 0)
            new_gate();
        else if (what == 1)
            open_one();
        else if (what == 2 && g.mapped)
            finish_mapping((int)pick((unsigned)g.mapped), 0);
        else
            add_command();
    }
    for (int i = 0; i < QUEUES; i++)
        MUST(clFlush(g.queues[i].queue));
    while (g.open != (1ul << g.gates) - 1)
        open_one();
    while (g.mapped)
        finish_mapping(0, 1);
    end_graph(&device);
}

int main(int argc, char **argv) {
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, graphs = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    for (int i = 3; i < argc; i++) {
        with_svm |= strcmp(argv[i], "svm") == 0;
        verbose |= strcmp(argv[i], "verbose") == 0;
    }
    device = open_device(0);
    program = build(&device, SOURCE, "-cl-kernel-arg-info");
    for (unsigned seed = first; seed - first < graphs; seed++) {
        run_graph(seed);
        fflush(stdout);
    }
    MUST(clReleaseProgram(program));
    close_device(&device);
    return 0;
}
