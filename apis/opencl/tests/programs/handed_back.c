/* Callbacks get the handle that the program knows, also when it has released the object; and what was registered for an event leaves
 * no reference behind. */
#include "common.h"

static void *volatile expected;
static volatile int calls, same;

static void called_with(void *object) {
    same += object == expected;
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

static void CL_CALLBACK on_event(cl_event event, cl_int status, void *data) {
    (void)status;
    (void)data;
    called_with(event);
}

static void CL_CALLBACK on_memory(cl_mem memory, void *data) {
    (void)data;
    called_with(memory);
}

static void CL_CALLBACK on_program(cl_program program, void *data) {
    (void)data;
    called_with(program);
}

static void await_calls(int count) {
    for (int i = 0; i < 60000 && calls < count; i++)
        usleep(1000);
}

static void events(struct device *d, int released) {
    calls = same = 0;
    cl_uint references = 0;
    for (int i = 0; i < 100; i++) {
        cl_int status;
        cl_event gate = clCreateUserEvent(d->context, &status), marker;
        MUST(clEnqueueMarkerWithWaitList(d->queue, 1, &gate, &marker));
        expected = marker;
        MUST(clSetEventCallback(marker, CL_COMPLETE, on_event, NULL));
        if (released)
            MUST(clReleaseEvent(marker));
        MUST(clSetUserEventStatus(gate, CL_COMPLETE));
        await_calls(i + 1);
        if (!released) {
            MUST(clWaitForEvents(1, &marker));
            MUST(clGetEventInfo(marker, CL_EVENT_REFERENCE_COUNT, sizeof references, &references, NULL));
            MUST(clReleaseEvent(marker));
        }
        MUST(clReleaseEvent(gate));
    }
    printf("events%s: %d calls, %d with the same handle, %u references at the end\n", released ? " released before" : "", calls, same, references);
}

static void memory(struct device *d, cl_mem buffer) {
    calls = same = 0;
    expected = buffer;
    MUST(clSetMemObjectDestructorCallback(buffer, on_memory, NULL));
    MUST(clReleaseMemObject(buffer));
    await_calls(1);
    printf("memory: %d calls, %d with the same handle\n", calls, same);
    (void)d;
}

int main(void) {
    struct device d = open_device(0);
    cl_int status;
    static char host[4096];
    events(&d, 0);
    events(&d, 1);
    memory(&d, buffer_of(&d, CL_MEM_READ_WRITE, 4096, NULL));
    memory(&d, buffer_of(&d, CL_MEM_USE_HOST_PTR, 4096, host));
    calls = same = 0;
    const char *source = "kernel void k(global int *p) { *p = 1; }";
    cl_program program = clCreateProgramWithSource(d.context, 1, &source, NULL, &status);
    expected = program;
    MUST(clBuildProgram(program, 1, &d.device, "", on_program, NULL));
    await_calls(1);
    printf("build: %d calls, %d with the same handle\n", calls, same);
    MUST(clReleaseProgram(program));
    close_device(&d);
    return 0;
}
