/* Kernels that say where they are, over many shapes; run with slicing on, their answers must be those of a native run. */
#include "common.h"

enum { WORDS = 20 };

static const char *const source =
    "#define GROUP(d) get_group_id(d)\n"
    "int twice(int d);\n"
    "int ends(void) { return (int)(get_num_groups(0) + 10 * get_num_groups(1) + 100 * get_num_groups(2)); }\n"
    "int twice(int d) { return 2 * (int)GROUP(d) + ends(/* nothing */); }\n"
    "kernel void places(global ulong *out, ulong4 o, ulong4 n) {\n"
    "  ulong at = ((get_global_id(2) - o.z) * n.y + get_global_id(1) - o.y) * n.x + get_global_id(0) - o.x;\n"
    "  out += at * 20;\n"
    "  for (uint d = 0; d < 3; d++) {\n"
    "    out[d] = get_global_id(d); out[3 + d] = get_group_id(d); out[6 + d] = get_num_groups(d);\n"
    "    out[9 + d] = get_global_size(d); out[12 + d] = get_global_offset(d); out[15 + d] = get_local_id(d) + 1000 * get_local_size(d);\n"
    "  }\n"
    "  out[18] = get_work_dim() + 10 * get_num_groups(7) + 100 * get_global_size(9) + get_global_offset(5) + get_group_id(4);\n"
    "  out[19] = twice(twice(0) & 1);\n"
    "}\n"
    "kernel void plain(global ulong *out, ulong4 o, ulong4 n) {\n"
    "  ulong at = ((get_global_id(2) - o.z) * n.y + get_global_id(1) - o.y) * n.x + get_global_id(0) - o.x;\n"
    "  for (int i = 0; i < 20; i++) out[at * 20 + i] = at * i + get_local_id(0) + 100 * get_local_size(1);\n"
    "}\n"
    "kernel void saxpy(global float *x, float a) { x[get_global_id(0)] = a * x[get_global_id(0)] + get_global_id(0); }\n"
    "kernel void reduce(global int *out, global const int *in, local int *part) {\n"
    "  int me = get_local_id(0);\n"
    "  part[me] = in[get_global_id(0)];\n"
    "  barrier(CLK_LOCAL_MEM_FENCE);\n"
    "  for (int step = get_local_size(0) / 2; step > 0; step /= 2) {\n"
    "    if (me < step) part[me] += part[me + step];\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "  }\n"
    "  if (me == 0) out[get_group_id(0)] = part[0] + get_num_groups(0);\n"
    "}\n"
    "kernel void sum(global int *total) { atomic_add(total, (int)get_global_id(0)); }\n"
    "kernel void negative(read_only image2d_t from, write_only image2d_t to, sampler_t how) {\n"
    "  int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "  write_imageui(to, at, (uint4)(255) - read_imageui(from, how, at) + (uint4)(get_group_id(1)));\n"
    "}\n"
    "kernel __attribute__((reqd_work_group_size(4, 2, 1))) void required(global int *out) {\n"
    "  out[get_global_id(1) * get_global_size(0) + get_global_id(0)] = get_local_id(0) + 10 * get_group_id(1);\n"
    "}\n"
    "kernel void waiting(global int *total) { for (int i = 0; i < 2; i++) atomic_inc(total); }\n"
    "kernel void watching(global volatile int *total) { int n = 0; while (total[1] && n < 10) n++; total[get_global_id(0)] += n; }\n"
    "#define UNUSED(a, b) a##b\n";

/* Of these none may be sliced: names that are made elsewhere cannot be followed. */
static const char *const pasted =
    "#define MAKE(name) kernel void made_##name(global int *out) { out[get_global_id(0)] = 7; }\n"
    "MAKE(here)\n"
    "#define JOIN(a, b) a##b\n"
    "kernel void pasting(global int *out) { out[get_global_id(0)] = JOIN(get_local, _id)(0); }\n";

static unsigned long random_state = 7;
static size_t random_below(size_t below) {
    random_state = random_state * 6364136223846793005ul + 1442695040888963407ul;
    return (random_state >> 33) % below;
}

static void launch(struct device *d, cl_kernel kernel, cl_uint dimensions, const size_t *offset, const size_t *size, const size_t *local) {
    size_t total = 1;
    cl_ulong4 o = {{0, 0, 0, 0}}, n = {{1, 1, 1, 1}};
    for (cl_uint i = 0; i < dimensions; i++) {
        total *= size[i];
        o.s[i] = offset ? offset[i] : 0;
        n.s[i] = size[i];
    }
    size_t bytes = total * WORDS * sizeof(cl_ulong);
    cl_ulong *out = calloc(1, bytes);
    cl_mem buffer = buffer_of(d, CL_MEM_COPY_HOST_PTR, bytes, out);
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    MUST(clSetKernelArg(kernel, 1, sizeof o, &o));
    MUST(clSetKernelArg(kernel, 2, sizeof n, &n));
    MUST(clEnqueueNDRangeKernel(d->queue, kernel, dimensions, offset, size, local, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, bytes, out, 0, NULL, NULL));
    printf("%u (%lu %lu %lu) + (%lu %lu %lu): %016lx\n", dimensions, (unsigned long)n.s[0], (unsigned long)n.s[1], (unsigned long)n.s[2],
           (unsigned long)o.s[0], (unsigned long)o.s[1], (unsigned long)o.s[2], digest(out, bytes));
    MUST(clReleaseMemObject(buffer));
    free(out);
}

/* Random shapes: with and without offset, in one to three dimensions. */
static void shapes(struct device *d, cl_program program) {
    cl_kernel places = kernel_of(program, "places"), plain = kernel_of(program, "plain");
    for (int round = 0; round < 60; round++) {
        size_t offset[3], size[3], local[3];
        cl_uint dimensions = 1 + random_below(3);
        for (cl_uint i = 0; i < dimensions; i++) {
            local[i] = 1 + random_below(dimensions == 1 ? 9 : 4);
            size[i] = local[i] * (1 + random_below(dimensions == 1 ? 60 : dimensions == 2 ? 12 : 6));
            offset[i] = random_below(50);
        }
        launch(d, round % 3 == 2 ? plain : places, dimensions, round % 2 ? offset : NULL, size, local);
    }
    MUST(clReleaseKernel(places));
    MUST(clReleaseKernel(plain));
}

static void saxpy(struct device *d, cl_program program) {
    enum { COUNT = 4096 };
    static float x[COUNT];
    cl_kernel kernel = kernel_of(program, "saxpy");
    cl_mem buffer = buffer_of(d, 0, sizeof x, NULL);
    size_t size = COUNT, odd = 1021;
    float a = 0.5f;
    MUST(clEnqueueWriteBuffer(d->queue, buffer, CL_FALSE, 0, sizeof x, x, 0, NULL, NULL));
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    /* The arguments of each launch are those of its call; the implementation chooses the local size. */
    for (int i = 0; i < 20; i++) {
        MUST(clSetKernelArg(kernel, 1, sizeof a, &a));
        MUST(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, i % 4 ? &size : &odd, NULL, 0, NULL, NULL));
        a += 0.25f;
    }
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, sizeof x, x, 0, NULL, NULL));
    printf("saxpy %016lx\n", digest(x, sizeof x));
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseMemObject(buffer));
}

static void groups(struct device *d, cl_program program) {
    enum { COUNT = 2048, LOCAL = 32 };
    static int in[COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++)
        in[i] = i * i % 1001;
    size_t size = COUNT, local = LOCAL, wide[2] = {64, 32}, narrow[2] = {4, 2};
    cl_mem from = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof in, in), to = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof out, out);
    cl_kernel reduce = kernel_of(program, "reduce"), sum = kernel_of(program, "sum"), required = kernel_of(program, "required");
    MUST(clSetKernelArg(reduce, 0, sizeof to, &to));
    MUST(clSetKernelArg(reduce, 1, sizeof from, &from));
    MUST(clSetKernelArg(reduce, 2, LOCAL * sizeof(int), NULL));
    MUST(clEnqueueNDRangeKernel(d->queue, reduce, 1, NULL, &size, &local, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL));
    printf("reduce %016lx\n", digest(out, sizeof out));
    MUST(clSetKernelArg(sum, 0, sizeof to, &to));
    MUST(clEnqueueNDRangeKernel(d->queue, sum, 1, NULL, &size, &local, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL));
    printf("sum %d %016lx\n", out[0], digest(out, sizeof out));
    MUST(clSetKernelArg(required, 0, sizeof to, &to));
    MUST(clEnqueueNDRangeKernel(d->queue, required, 2, NULL, wide, narrow, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL));
    printf("required %016lx\n", digest(out, sizeof out));
    MUST(clReleaseKernel(reduce));
    MUST(clReleaseKernel(sum));
    MUST(clReleaseKernel(required));
    MUST(clReleaseMemObject(from));
    MUST(clReleaseMemObject(to));
}

static void images(struct device *d, cl_program program) {
    enum { WIDTH = 64, HEIGHT = 48 };
    static unsigned char pixels[HEIGHT * WIDTH * 4];
    for (int i = 0; i < WIDTH * HEIGHT * 4; i++)
        pixels[i] = (unsigned char)(i * 7);
    cl_int status;
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH, .image_height = HEIGHT};
    cl_mem from = clCreateImage(d->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, &format, &desc, pixels, &status);
    MUST(status);
    cl_mem to = clCreateImage(d->context, CL_MEM_WRITE_ONLY, &format, &desc, NULL, &status);
    MUST(status);
    cl_sampler sampler = clCreateSampler(d->context, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &status);
    MUST(status);
    cl_kernel kernel = kernel_of(program, "negative");
    MUST(clSetKernelArg(kernel, 0, sizeof from, &from));
    MUST(clSetKernelArg(kernel, 1, sizeof to, &to));
    MUST(clSetKernelArg(kernel, 2, sizeof sampler, &sampler));
    size_t size[] = {WIDTH, HEIGHT}, local[] = {8, 4}, origin[3] = {0}, region[] = {WIDTH, HEIGHT, 1};
    MUST(clEnqueueNDRangeKernel(d->queue, kernel, 2, NULL, size, local, 0, NULL, NULL));
    MUST(clEnqueueReadImage(d->queue, to, CL_TRUE, origin, region, 0, 0, pixels, 0, NULL, NULL));
    printf("negative %016lx\n", digest(pixels, sizeof pixels));
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseSampler(sampler));
    MUST(clReleaseMemObject(from));
    MUST(clReleaseMemObject(to));
}

static void once(struct device *d, cl_program program, const char *name) {
    static int out[512];
    size_t size = 512, local = 8;
    cl_kernel kernel = kernel_of(program, name);
    cl_mem to = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof out, out);
    MUST(clSetKernelArg(kernel, 0, sizeof to, &to));
    MUST(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &size, &local, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL));
    printf("%s %016lx\n", name, digest(out, sizeof out));
    memset(out, 0, sizeof out);
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseMemObject(to));
}

/* A program from a binary: what its kernels use cannot be read. */
static void from_binary(struct device *d, cl_program program) {
    size_t size = 0;
    cl_int status, loaded;
    MUST(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL));
    unsigned char *binary = malloc(size);
    MUST(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL));
    cl_program again = clCreateProgramWithBinary(d->context, 1, &d->device, &size, (const unsigned char **)&binary, &loaded, &status);
    MUST(status);
    MUST(clBuildProgram(again, 1, &d->device, "", NULL, NULL));
    once(d, again, "sum");
    MUST(clReleaseProgram(again));
    free(binary);
}

/* Events: what comes before and after a launch, in queues of both kinds, `gated` behind a user event (no launch goes in parts then). */
static void order(struct device *d, cl_program program, cl_command_queue_properties properties, int gated) {
    enum { COUNT = 4096 };
    static float x[COUNT], y[COUNT];
    cl_int status;
    cl_ulong times[4] = {0};
    cl_kernel kernel = kernel_of(program, "saxpy");
    cl_mem buffer = buffer_of(d, 0, sizeof x, NULL);
    cl_command_queue queue = clCreateCommandQueue(d->context, d->device, properties | CL_QUEUE_PROFILING_ENABLE, &status);
    MUST(status);
    size_t size = COUNT, local = 8;
    float a = 2;
    cl_event user = gated ? clCreateUserEvent(d->context, &status) : NULL, events[4];
    MUST(status);
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)i;
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    MUST(clSetKernelArg(kernel, 1, sizeof a, &a));
    MUST(clEnqueueWriteBuffer(queue, buffer, CL_FALSE, 0, sizeof x, x, (cl_uint)gated, gated ? &user : NULL, &events[0]));
    MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, &local, 1, &events[0], &events[1]));
    a = 3;
    MUST(clSetKernelArg(kernel, 1, sizeof a, &a));
    MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, &local, 1, &events[1], &events[2]));
    MUST(clEnqueueReadBuffer(queue, buffer, CL_FALSE, 0, sizeof y, y, 1, &events[2], &events[3]));
    MUST(clGetEventInfo(events[2], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    printf("waits: %d\n", !gated || status > CL_COMPLETE);
    cl_command_type type = 0;
    MUST(clGetEventInfo(events[2], CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
    printf("is a launch: %d\n", type == CL_COMMAND_NDRANGE_KERNEL);
    if (gated)
        MUST(clSetUserEventStatus(user, CL_COMPLETE));
    MUST(clFinish(queue));
    printf("ordered %016lx\n", digest(y, sizeof y));
    for (int i = 0; i < 4; i++)
        MUST(clGetEventProfilingInfo(events[2], CL_PROFILING_COMMAND_QUEUED + i, sizeof times[i], &times[i], NULL));
    printf("times are in order: %d %d %d\n", times[0] <= times[1], times[1] <= times[2], times[2] < times[3]);
    for (int i = 0; i < 4; i++)
        MUST(clReleaseEvent(events[i]));
    if (gated)
        MUST(clReleaseEvent(user));
    MUST(clReleaseCommandQueue(queue));
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseMemObject(buffer));
}

/* A launch that waits for what fails does not run, and fails too. */
static void failing(struct device *d, cl_program program) {
    static int total[1];
    cl_int status, ended = 0;
    size_t size = 512, local = 8;
    cl_kernel kernel = kernel_of(program, "sum");
    cl_mem buffer = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof total, total);
    cl_command_queue queue = clCreateCommandQueue(d->context, d->device, 0, &status);
    MUST(status);
    cl_event user = clCreateUserEvent(d->context, &status), event;
    MUST(status);
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    MUST(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, &local, 1, &user, &event));
    MUST(clFlush(queue));
    MUST(clSetUserEventStatus(user, -5));
    printf("waiting fails: %d\n", clWaitForEvents(1, &event) != CL_SUCCESS);
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof ended, &ended, NULL));
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, sizeof total, total, 0, NULL, NULL));
    printf("failed: %d, total %d\n", ended < 0, total[0]);
    MUST(clReleaseEvent(event));
    MUST(clReleaseEvent(user));
    MUST(clReleaseCommandQueue(queue));
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseMemObject(buffer));
}

static void mistakes(struct device *d, cl_program program) {
    size_t size = 512, local = 8, crooked = 7, end = (size_t)-4;
    cl_event nothing = NULL;
    cl_kernel bare = kernel_of(program, "saxpy"), kernel = kernel_of(program, "sum");
    cl_mem buffer = buffer_of(d, 0, 4, NULL);
    MUST(clSetKernelArg(kernel, 0, sizeof buffer, &buffer));
    SHOW(clEnqueueNDRangeKernel(d->queue, bare, 1, NULL, &size, &local, 0, NULL, NULL));
    SHOW(clEnqueueNDRangeKernel(d->queue, kernel, 4, NULL, &size, &local, 0, NULL, NULL));
    SHOW(clEnqueueNDRangeKernel(d->queue, kernel, 0, NULL, &size, &local, 0, NULL, NULL));
    SHOW(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &size, &crooked, 0, NULL, NULL) != CL_SUCCESS);
    SHOW(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &size, &size, 0, NULL, NULL));
    SHOW(clEnqueueNDRangeKernel(d->queue, kernel, 1, NULL, &size, &local, 0, &nothing, NULL));
    SHOW(clEnqueueNDRangeKernel(d->queue, kernel, 1, &end, &size, &local, 0, NULL, NULL) != CL_SUCCESS);
    MUST(clFinish(d->queue));
    MUST(clReleaseKernel(bare));
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseMemObject(buffer));
}

/* Arguments travel with a clone; the program may be released before its kernels. */
static void clones(struct device *d) {
    static int out[512];
    cl_int status;
    size_t size = 512, local = 8;
    cl_program program = build(d, source, "-DUNUSED=3");
    cl_kernel kernel = kernel_of(program, "reduce");
    for (int i = 0; i < 512; i++)
        out[i] = 3 * i;
    cl_mem from = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof out, out), to = buffer_of(d, CL_MEM_COPY_HOST_PTR, sizeof out, out);
    MUST(clReleaseProgram(program));
    MUST(clSetKernelArg(kernel, 0, sizeof to, &to));
    MUST(clSetKernelArg(kernel, 1, sizeof from, &from));
    MUST(clSetKernelArg(kernel, 2, 8 * sizeof(int), NULL));
    cl_kernel clone = clCloneKernel(kernel, &status);
    if (status == CL_SUCCESS)
        MUST(clReleaseKernel(kernel));
    else
        clone = kernel;
    for (int i = 0; i < 3; i++)
        MUST(clEnqueueNDRangeKernel(d->queue, clone, 1, NULL, &size, &local, 0, NULL, NULL));
    MUST(clReleaseKernel(clone));
    MUST(clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL));
    printf("clone %016lx\n", digest(out, sizeof out));
    MUST(clReleaseMemObject(from));
    MUST(clReleaseMemObject(to));
}

int main(void) {
    struct device d = open_device(0);
    cl_program program = build(&d, source, "");
    shapes(&d, program);
    saxpy(&d, program);
    groups(&d, program);
    images(&d, program);
    once(&d, program, "waiting");
    once(&d, program, "watching");
    cl_program others = build(&d, pasted, "");
    once(&d, others, "made_here");
    once(&d, others, "pasting");
    MUST(clReleaseProgram(others));
    from_binary(&d, program);
    for (int gated = 0; gated < 2; gated++)
        order(&d, program, 0, gated);
    for (int gated = 0; gated < 2; gated++)
        order(&d, program, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, gated);
    mistakes(&d, program);
    failing(&d, program);
    clones(&d);
    MUST(clReleaseProgram(program));
    close_device(&d);
    return 0;
}
