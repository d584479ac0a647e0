/* Objects that outlive many calls, and all that can be asked of them: where a session moves between the calls, every answer stays. */
#include "common.h"

static const char *SOURCE =
    "kernel void add(global uint *to, global const uint *from, uint more) {\n"
    "  to[get_global_id(0)] += from[get_global_id(0)] + more;\n"
    "}\n";

enum { COUNT = 4096, CALLS = 12 };

/* Calls that change nothing: a move may come at any of them. */
static void linger(struct device *d) {
    for (int i = 0; i < CALLS; i++) {
        cl_uint references = 0;
        MUST(clGetContextInfo(d->context, CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, NULL));
        MUST(clFinish(d->queue));
    }
}

/* ---- Events ------------------------------------------------------------------------------------ */

static void show_event(struct device *d, cl_event event, const char *name) {
    cl_command_type type = 0;
    cl_int status = 1;
    cl_command_queue queue = NULL;
    cl_context context = NULL;
    cl_ulong times[4] = {0};
    size_t size = 0;
    const cl_profiling_info names[] = {CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT, CL_PROFILING_COMMAND_START,
                                       CL_PROFILING_COMMAND_END};
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, &size));
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL));
    MUST(clGetEventInfo(event, CL_EVENT_CONTEXT, sizeof context, &context, NULL));
    int profiled = 0;
    for (int i = 0; i < 4; i++)
        profiled += clGetEventProfilingInfo(event, names[i], sizeof times[i], &times[i], NULL) == CL_SUCCESS;
    int in_order = times[0] <= times[1] && times[1] <= times[2] && times[2] <= times[3];
    printf("%s: type %#x of %zu bytes, status %d, queue %s, context %d, %d times, in order %d, too small %d\n", name,
           type, size, status, queue == d->queue ? "ours" : queue ? "other" : "none", context == d->context, profiled,
           in_order, clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, 1, &type, NULL));
}

/* The queue of a runtime may keep its last event, too: only for others the number is the application's own. */
static void show_references(cl_event event, const char *name) {
    cl_uint references = 0;
    MUST(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof references, &references, NULL));
    printf("%s: %u references\n", name, references);
}

static void same_times(cl_event event, cl_ulong known[2], const char *name) {
    cl_ulong times[2] = {0};
    MUST(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof times[0], &times[0], NULL));
    MUST(clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof times[1], &times[1], NULL));
    printf("%s: its times are %s\n", name, times[0] == known[0] && times[1] == known[1] ? "the same" : "others");
}

static int called;

static void CL_CALLBACK count_call(cl_event event, cl_int status, void *data) {
    (void)event;
    __atomic_add_fetch((int *)data, status == CL_COMPLETE, __ATOMIC_RELEASE);
}

static void events(struct device *d, cl_mem to, cl_mem from) {
    cl_event written, copied, own, later;
    cl_int status;
    cl_uint *words = malloc(COUNT * 4);
    cl_ulong times[2] = {0};
    for (int i = 0; i < COUNT; i++)
        words[i] = (cl_uint)i * 3;
    MUST(clEnqueueWriteBuffer(d->queue, from, CL_FALSE, 0, COUNT * 4, words, 0, NULL, &written));
    MUST(clEnqueueCopyBuffer(d->queue, from, to, 0, 0, COUNT * 4, 1, &written, &copied));
    MUST(clWaitForEvents(1, &copied));
    MUST(clRetainEvent(written));
    MUST(clRetainEvent(written));
    MUST(clGetEventProfilingInfo(copied, CL_PROFILING_COMMAND_START, sizeof times[0], &times[0], NULL));
    MUST(clGetEventProfilingInfo(copied, CL_PROFILING_COMMAND_END, sizeof times[1], &times[1], NULL));
    linger(d);
    show_event(d, written, "written");
    show_references(written, "written");
    show_event(d, copied, "copied");
    same_times(copied, times, "copied");
    own = clCreateUserEvent(d->context, &status);
    MUST(status);
    MUST(clEnqueueMarkerWithWaitList(d->queue, 1, &own, &later));
    /* While a command waits for the application the session stays. */
    show_event(d, own, "own, before");
    MUST(clSetEventCallback(later, CL_COMPLETE, count_call, &called));
    MUST(clSetUserEventStatus(own, CL_COMPLETE));
    MUST(clWaitForEvents(1, &later));
    while (!__atomic_load_n(&called, __ATOMIC_ACQUIRE))
        usleep(1000);
    linger(d);
    show_event(d, own, "own");
    show_event(d, later, "later");
    printf("set again: %d\n", clSetUserEventStatus(own, CL_COMPLETE));
    /* Complete ones may still be waited for. */
    cl_event all[] = {written, copied, own, later};
    MUST(clEnqueueMarkerWithWaitList(d->queue, 4, all, NULL));
    MUST(clWaitForEvents(4, all));
    MUST(clReleaseEvent(written));
    show_references(written, "written, released once");
    MUST(clReleaseEvent(written));
    for (int i = 0; i < 4; i++)
        MUST(clReleaseEvent(all[i]));
    free(words);
}

/* ---- Memory ------------------------------------------------------------------------------------ */

static void show_buffer(struct device *d, cl_mem buffer, size_t bytes, const char *name) {
    unsigned char *content = malloc(bytes);
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, bytes, content, 0, NULL, NULL));
    printf("%s: %lx\n", name, digest(content, bytes));
    free(content);
}

/* An image whose rows are no power of two, with a content. */
static cl_mem image_of(struct device *d, cl_mem_object_type type, size_t width, size_t height, size_t depth) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT16};
    int is_array = type == CL_MEM_OBJECT_IMAGE1D_ARRAY || type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
    cl_image_desc desc = {.image_type = type, .image_width = width, .image_height = type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? 0 : height,
                          .image_depth = is_array ? 0 : depth,
                          .image_array_size = type == CL_MEM_OBJECT_IMAGE1D_ARRAY ? height : is_array ? depth : 0};
    cl_int status;
    cl_mem image = clCreateImage(d->context, CL_MEM_READ_WRITE, &format, &desc, NULL, &status);
    MUST(status);
    size_t bytes = width * height * depth * 8, origin[3] = {0}, region[3] = {width, height, depth};
    unsigned char *pixels = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        pixels[i] = (unsigned char)(i * 7 + i / 251);
    MUST(clEnqueueWriteImage(d->queue, image, CL_TRUE, origin, region, 0, 0, pixels, 0, NULL, NULL));
    free(pixels);
    return image;
}

static void show_image(struct device *d, cl_mem image, size_t width, size_t height, size_t depth, const char *name) {
    size_t bytes = width * height * depth * 8, origin[3] = {0}, region[3] = {width, height, depth};
    unsigned char *pixels = malloc(bytes);
    MUST(clEnqueueReadImage(d->queue, image, CL_TRUE, origin, region, 0, 0, pixels, 0, NULL, NULL));
    printf("%s: %lx\n", name, digest(pixels, bytes));
    free(pixels);
}

static void memory(struct device *d, cl_mem to) {
    cl_int status;
    cl_buffer_region region = {1024, 2048};
    cl_uint *host = aligned_alloc(4096, COUNT * 4), pattern = 0xdecade;
    memset(host, 0x11, COUNT * 4);
    cl_mem part = clCreateSubBuffer(to, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    MUST(status);
    cl_mem outside = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, COUNT * 4, host);
    cl_mem flat = image_of(d, CL_MEM_OBJECT_IMAGE2D, 133, 57, 1), deep = image_of(d, CL_MEM_OBJECT_IMAGE3D, 9, 13, 5);
    cl_mem rows = image_of(d, CL_MEM_OBJECT_IMAGE1D_ARRAY, 77, 6, 1), stack = image_of(d, CL_MEM_OBJECT_IMAGE2D_ARRAY, 15, 11, 3);
    /* More than one piece of a snapshot. */
    cl_mem large = image_of(d, CL_MEM_OBJECT_IMAGE2D, 999, 101, 1);
    linger(d);
    MUST(clEnqueueFillBuffer(d->queue, part, &pattern, 4, 512, 512, 0, NULL, NULL));
    MUST(clEnqueueFillBuffer(d->queue, outside, &pattern, 4, 0, 4096, 0, NULL, NULL));
    linger(d);
    /* The whole goes first. */
    show_buffer(d, to, COUNT * 4, "whole");
    show_buffer(d, part, 2048, "part");
    show_buffer(d, outside, COUNT * 4, "outside");
    cl_uint *mapped = clEnqueueMapBuffer(d->queue, outside, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, COUNT * 4, 0, NULL, NULL, &status);
    MUST(status);
    printf("mapped at its place: %d, %x\n", mapped == host, mapped[3]);
    mapped[3] = 77;
    linger(d);
    MUST(clEnqueueUnmapMemObject(d->queue, outside, mapped, 0, NULL, NULL));
    show_buffer(d, outside, COUNT * 4, "outside, written");
    show_image(d, flat, 133, 57, 1, "flat");
    show_image(d, deep, 9, 13, 5, "deep");
    show_image(d, rows, 77, 6, 1, "rows");
    show_image(d, stack, 15, 11, 3, "stack");
    show_image(d, large, 999, 101, 1, "large");
    cl_mem all[] = {part, outside, flat, deep, rows, stack, large};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        MUST(clReleaseMemObject(all[i]));
    free(host);
}

/* ---- Programs ---------------------------------------------------------------------------------- */

static void programs(struct device *d, cl_mem to, cl_mem from) {
    cl_int status;
    cl_program program = build(d, SOURCE, "-DUNUSED=1");
    cl_kernel kernel = kernel_of(program, "add");
    cl_mem gone = buffer_of(d, CL_MEM_READ_ONLY, COUNT * 4, NULL);
    cl_uint more = 5;
    size_t global = COUNT;
    MUST(clSetKernelArg(kernel, 0, sizeof to, &to));
    MUST(clSetKernelArg(kernel, 1, sizeof gone, &gone));
    MUST(clReleaseMemObject(gone));
    MUST(clSetKernelArg(kernel, 1, sizeof from, &from));
    MUST(clSetKernelArg(kernel, 2, sizeof more, &more));
    /* The kernel keeps its program. */
    MUST(clReleaseProgram(program));
    linger(d);
    for (int i = 0; i < 4; i++)
        MUST(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
    show_buffer(d, to, COUNT * 4, "added");
    /* A build that fails keeps its session as long as the program lives: its log is there. */
    const char *wrong = "kernel void broken(global int *to) { to[0] = no_such_thing; }\n";
    cl_program broken = clCreateProgramWithSource(d->context, 1, &wrong, NULL, &status);
    MUST(status);
    printf("build: %d\n", clBuildProgram(broken, 1, &d->device, "", NULL, NULL));
    linger(d);
    cl_build_status built = 0;
    size_t log = 0;
    MUST(clGetProgramBuildInfo(broken, d->device, CL_PROGRAM_BUILD_STATUS, sizeof built, &built, NULL));
    MUST(clGetProgramBuildInfo(broken, d->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &log));
    printf("build status %d, a log %d\n", built, log > 1);
    MUST(clReleaseProgram(broken));
    linger(d);
    char name[64] = "";
    MUST(clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL));
    MUST(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL));
    printf("kernel %s\n", name);
    show_buffer(d, to, COUNT * 4, "added again");
    MUST(clReleaseKernel(kernel));
}

int main(void) {
    struct device d = open_device(CL_QUEUE_PROFILING_ENABLE);
    cl_mem to = buffer_of(&d, CL_MEM_READ_WRITE, COUNT * 4, NULL), from = buffer_of(&d, CL_MEM_READ_WRITE, COUNT * 4, NULL);
    events(&d, to, from);
    memory(&d, to);
    programs(&d, to, from);
    MUST(clReleaseMemObject(to));
    MUST(clReleaseMemObject(from));
    close_device(&d);
    return 0;
}
