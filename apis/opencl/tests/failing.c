/* Random commands behind user events that fail. Each seed is a round: commands of many kinds on several queues, in and out of order,
 * behind user events of which some fail; what becomes of each command is known in advance. One line per round says what did; a run
 * through Aviary must print the same lines as a native one, and end.
 *   failing FIRST COUNT
 *
 * Rounds keep to what PoCL 3.1 survives natively. It ends the process where an event fails that nobody holds: events of commands that will
 * fail are held until all user events are set. It ends it where a command that waits for two others fails because of one in the moment in
 * which the other is complete: a user event fails only when all is complete that can be. It calls no callbacks of events that fail. */
#include "common.h"
#include <pthread.h>

enum { MOST_COMMANDS = 24, MOST_QUEUES = 3, MOST_USER_EVENTS = 4, CELLS = 64 };

static const char *SOURCE = "kernel void mark(global uint *a, uint cell, uint value) { a[cell] = value; }\n";

static unsigned long long random_state;

static unsigned pick(unsigned below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(random_state >> 33) % below;
}

struct command {
    cl_event event;
    /* The user events that it waits for, directly or not: one bit for each. */
    unsigned gates;
    int fails, cell, released;
    unsigned host;
};

static struct device device;
static cl_kernel kernel;
static int runs_natives, natives, callbacks;

struct round {
    cl_command_queue queues[MOST_QUEUES];
    int in_order[MOST_QUEUES], queue_count;
    unsigned queue_gates[MOST_QUEUES], barrier_gates[MOST_QUEUES];
    cl_event user[MOST_USER_EVENTS];
    unsigned failing;
    int user_count;
    struct command commands[MOST_COMMANDS];
    int count, natives, callbacks;
    cl_mem buffer, other;
};

static void CL_CALLBACK note_native(void *argument) {
    (void)argument;
    __atomic_add_fetch(&natives, 1, __ATOMIC_SEQ_CST);
}

static void CL_CALLBACK note_callback(cl_event event, cl_int status, void *data) {
    (void)event;
    (void)data;
    if (status == CL_COMPLETE)
        __atomic_add_fetch(&callbacks, 1, __ATOMIC_SEQ_CST);
}

/* Up to three of the round's events, and what they wait for. */
static cl_uint choose_waits(struct round *r, cl_event *list, unsigned *gates) {
    cl_uint waits = 0;
    for (unsigned i = pick(4); i > 0; i--) {
        if (pick(2)) {
            unsigned at = pick((unsigned)r->user_count);
            list[waits++] = r->user[at];
            *gates |= 1u << at;
        } else if (r->count) {
            const struct command *c = &r->commands[pick((unsigned)r->count)];
            if (c->event && !c->released) {
                list[waits++] = c->event;
                *gates |= c->gates;
            }
        }
    }
    return waits;
}

static void enqueue(struct round *r) {
    struct command *c = &r->commands[r->count];
    unsigned at = pick((unsigned)r->queue_count);
    cl_command_queue q = r->queues[at];
    cl_event list[3];
    unsigned gates = 0, kind = pick(10), value = (unsigned)r->count + 1;
    /* Markers and barriers without a list wait for all that is before them. With one, in a queue without order, PoCL takes them for
     * others than OpenCL says. */
    cl_uint waits = r->in_order[at] || kind > 1 ? choose_waits(r, list, &gates) : 0;
    const cl_event *wait = waits ? list : NULL;
    if (r->in_order[at] || kind < 2)
        gates |= r->queue_gates[at];
    gates |= r->barrier_gates[at];
    int fails = (gates & r->failing) != 0;
    *c = (struct command){.gates = gates, .fails = fails, .cell = -1};
    cl_event *event = r->failing || pick(3) ? &c->event : NULL;
    size_t one = 1;
    switch (kind) {
    case 0:
        MUST(clEnqueueMarkerWithWaitList(q, waits, wait, event));
        break;
    case 1:
        MUST(clEnqueueBarrierWithWaitList(q, waits, wait, event));
        r->barrier_gates[at] |= gates;
        break;
    case 2:
        MUST(clEnqueueWriteBuffer(q, r->other, CL_FALSE, 4 * (size_t)r->count, 4, &c->host, waits, wait, event));
        break;
    case 3:
        MUST(clEnqueueReadBuffer(q, r->other, CL_FALSE, 4 * (size_t)r->count, 4, &c->host, waits, wait, event));
        break;
    case 4:
        MUST(clEnqueueFillBuffer(q, r->buffer, &value, 4, 4 * (size_t)r->count, 4, waits, wait, event));
        c->cell = r->count;
        break;
    case 5:
        MUST(clEnqueueCopyBuffer(q, r->other, r->other, 0, 128 + 4 * (size_t)r->count, 4, waits, wait, event));
        break;
    case 6:
        if (!runs_natives) {
            MUST(clEnqueueMigrateMemObjects(q, 1, &r->other, 0, waits, wait, event));
            break;
        }
        MUST(clEnqueueNativeKernel(q, note_native, NULL, 0, 0, NULL, NULL, waits, wait, event));
        r->natives += !fails;
        break;
    default:
        MUST(clSetKernelArg(kernel, 0, sizeof r->buffer, &r->buffer));
        MUST(clSetKernelArg(kernel, 1, sizeof(int), &r->count));
        MUST(clSetKernelArg(kernel, 2, sizeof value, &value));
        MUST(clEnqueueNDRangeKernel(q, kernel, 1, NULL, &one, pick(2) ? &one : NULL, waits, wait, event));
        c->cell = r->count;
    }
    r->queue_gates[at] |= gates;
    if (event && pick(4) == 0) {
        MUST(clSetEventCallback(c->event, CL_COMPLETE, note_callback, NULL));
        r->callbacks += !fails;
    }
    if (event && !r->failing && pick(4) == 0) {
        MUST(clReleaseEvent(c->event));
        c->released = 1;
    }
    if (pick(4) == 0)
        MUST(clFlush(q));
    r->count++;
}

/* Until everything is complete that waits for these user events at most. */
static void settle(struct round *r, unsigned set) {
    for (int i = 0; i < r->count; i++)
        if (r->commands[i].event && !r->commands[i].fails && !(r->commands[i].gates & ~set))
            MUST(clWaitForEvents(1, &r->commands[i].event));
}

static void *set_all(void *argument) {
    struct round *r = argument;
    for (int i = 0; i < r->user_count; i++) {
        int fails = (r->failing >> i) & 1;
        if (fails)
            settle(r, (1u << i) - 1);
        MUST(clSetUserEventStatus(r->user[i], fails ? -1 - i : CL_COMPLETE));
        /* The last one that holds it may be the round itself. */
        MUST(clReleaseEvent(r->user[i]));
    }
    return NULL;
}

static void nap(void) {
    static const unsigned lengths[] = {0, 0, 0, 500, 2000, 25000};
    unsigned length = lengths[pick(6)];
    if (length)
        usleep(length);
}

static void begin(struct round *r) {
    static const cl_uint zeros[CELLS];
    cl_int status;
    *r = (struct round){.queue_count = 1 + (int)pick(MOST_QUEUES), .user_count = 1 + (int)pick(MOST_USER_EVENTS)};
    for (int i = 0; i < r->queue_count; i++) {
        r->in_order[i] = pick(3) > 0;
        cl_command_queue_properties properties = (r->in_order[i] ? 0 : CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
                                                 | (pick(2) ? CL_QUEUE_PROFILING_ENABLE : 0);
        r->queues[i] = clCreateCommandQueue(device.context, device.device, properties, &status);
        MUST(status);
    }
    for (int i = 0; i < r->user_count; i++) {
        r->user[i] = clCreateUserEvent(device.context, &status);
        MUST(status);
        r->failing |= (pick(2) == 0) << i;
    }
    r->buffer = buffer_of(&device, CL_MEM_COPY_HOST_PTR, sizeof zeros, (void *)zeros);
    r->other = buffer_of(&device, CL_MEM_COPY_HOST_PTR, sizeof zeros, (void *)zeros);
    natives = callbacks = 0;
}

/* Waits for one command after the other; its number, what the wait said, and its status, where one of them is not as expected. */
static int look_at_commands(struct round *r) {
    int strange = 0;
    for (int i = 0; i < r->count; i++) {
        struct command *c = &r->commands[i];
        cl_int ended = CL_QUEUED;
        if (!c->event || c->released)
            continue;
        cl_int waited = clWaitForEvents(1, &c->event);
        MUST(clGetEventInfo(c->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof ended, &ended, NULL));
        int good = c->fails ? waited == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST && ended < 0 : waited == CL_SUCCESS && ended == CL_COMPLETE;
        strange += !good;
        if (!good)
            printf("  command %d: %s, waited %d, status %d\n", i, c->fails ? "fails" : "completes", waited, ended);
    }
    return strange;
}

static void let_go(struct round *r) {
    unsigned first = pick((unsigned)(r->count + 1));
    for (int n = 0; n < r->count; n++) {
        struct command *c = &r->commands[(first + (unsigned)n) % (unsigned)r->count];
        if (c->event && !c->released)
            MUST(clReleaseEvent(c->event));
    }
}

static void play(unsigned seed) {
    struct round r;
    cl_uint cells[CELLS];
    int wrong = 0, failing = 0, commands;
    random_state = seed * 0x9e3779b97f4a7c15ull + 1;
    begin(&r);
    commands = 1 + (int)pick(MOST_COMMANDS);
    for (int i = 0; i < commands; i++) {
        enqueue(&r);
        if (pick(8) == 0)
            nap();
    }
    nap();
    pthread_t setter;
    int has_setter = pick(3) == 0;
    if (has_setter)
        MUST(pthread_create(&setter, NULL, set_all, &r));
    else
        set_all(&r);
    int strange = look_at_commands(&r);
    if (has_setter)
        pthread_join(setter, NULL);
    for (int i = 0; i < r.queue_count; i++)
        MUST(clFinish(r.queues[i]));
    MUST(clEnqueueReadBuffer(device.queue, r.buffer, CL_TRUE, 0, sizeof cells, cells, 0, NULL, NULL));
    for (int i = 0; i < r.count; i++) {
        failing += r.commands[i].fails;
        wrong += r.commands[i].cell >= 0 && cells[i] != (r.commands[i].fails ? 0 : (unsigned)i + 1);
    }
    /* Callbacks of commands that are complete may still be on their way. */
    for (int i = 0; i < 20000 && __atomic_load_n(&callbacks, __ATOMIC_SEQ_CST) < r.callbacks; i++)
        usleep(1000);
    let_go(&r);
    for (int i = 0; i < r.queue_count; i++)
        MUST(clReleaseCommandQueue(r.queues[i]));
    MUST(clReleaseMemObject(r.buffer));
    MUST(clReleaseMemObject(r.other));
    printf("round %u: %d commands, %d failing, strange %d, cells wrong %d, native kernels wrong %d, callbacks %d of %d\n", seed, r.count,
           failing, strange, wrong, natives - r.natives, callbacks, r.callbacks);
    fflush(stdout);
}

int main(int argc, char **argv) {
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, count = argc > 2 ? (unsigned)atoi(argv[2]) : 100;
    device = open_device(0);
    cl_device_exec_capabilities can = 0;
    MUST(clGetDeviceInfo(device.device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof can, &can, NULL));
    runs_natives = (can & CL_EXEC_NATIVE_KERNEL) != 0;
    cl_program program = build(&device, SOURCE, "");
    kernel = kernel_of(program, "mark");
    for (unsigned seed = first; seed < first + count; seed++)
        play(seed);
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseProgram(program));
    close_device(&device);
    return 0;
}
