/* Threads that end or replace an object which another object uses: the arguments of a kernel and of its clone, the buffer
 * of a sub-buffer, the mapping of an image, what a command buffer has recorded. The program is wrong, and natively ends in
 * any way; through Aviary its API server lives. The program itself may crash: the guest library's part of an object is
 * memory of the program.
 *
 *   race_held_cl CASE ROUNDS     prints `uses N, refused M` and exits 0; 3 if the API server is lost */
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 4096, SIZE = ITEMS * sizeof(cl_int), LAUNCHERS = 2, WIDTH = 512, HEIGHT = 256 };

static cl_context context;
static cl_device_id device;
static cl_platform_id platform;
static cl_command_queue queue;
static cl_kernel kernel;
static _Atomic(cl_kernel) shared_kernel;
static atomic_int stop, lost;
static atomic_long uses, refused;

static int count(cl_int error) {
    /* Every function answers this once the API server is gone. */
    if (error == CL_DEVICE_NOT_AVAILABLE)
        lost = stop = 1;
    atomic_fetch_add(error ? &refused : &uses, 1);
    return error;
}

/* A late error of an earlier call may be the answer: NULL then. */
static cl_mem new_buffer(void) {
    cl_int error;
    cl_mem made = clCreateBuffer(context, CL_MEM_READ_WRITE, SIZE, NULL, &error);
    return count(error) ? NULL : made;
}

static void set(cl_kernel of, cl_mem value) {
    for (cl_uint index = 0; index < 2; index++)
        count(clSetKernelArg(of, index, sizeof value, &value));
}

static void launch(cl_kernel launched) {
    count(clEnqueueNDRangeKernel(queue, launched, 1, NULL, &(size_t){ITEMS}, NULL, 0, NULL, NULL));
}

static void *launch_on(void *unused) {
    (void)unused;
    while (!stop) {
        launch(shared_kernel);
        count(clFinish(queue));
    }
    return NULL;
}

/* A kernel's arguments are released before it is launched, and replaced meanwhile. */
static void arguments(int rounds) {
    pthread_t threads[LAUNCHERS];
    cl_mem first = new_buffer();
    set(kernel, first);
    shared_kernel = kernel;
    for (int i = 0; i < LAUNCHERS; i++)
        pthread_create(&threads[i], NULL, launch_on, NULL);
    for (int round = 0; round < rounds && !stop; round++) {
        cl_mem made = new_buffer();
        if (!made)
            continue;
        set(kernel, made);
        count(clReleaseMemObject(made));
        launch(kernel);
        for (volatile int pause = 0; pause < round % 50 * 400; pause++)
            ;
    }
    stop = 1;
    for (int i = 0; i < LAUNCHERS; i++)
        pthread_join(threads[i], NULL);
    count(clReleaseMemObject(first));
}

/* A clone has the arguments of its kernel, which then gets others. */
static void clones(int rounds) {
    for (int round = 0; round < rounds && !stop; round++) {
        cl_int error;
        cl_mem made = new_buffer(), other = new_buffer();
        set(kernel, made);
        cl_kernel clone = clCloneKernel(kernel, &error);
        count(error);
        set(kernel, other);
        count(clReleaseMemObject(made));
        count(clReleaseMemObject(other));
        count(clFinish(queue));
        for (int i = 0; clone && i < 3; i++)
            launch(clone);
        launch(kernel);
        if (clone)
            count(clReleaseKernel(clone));
        count(clFinish(queue));
    }
}

static cl_mem parent;

static void *release_parent(void *unused) {
    (void)unused;
    count(clReleaseMemObject(parent));
    return NULL;
}

/* A sub-buffer lies in a buffer that is released while it is made. */
static void parts(int rounds) {
    for (int round = 0; round < rounds && !stop; round++) {
        cl_int error;
        pthread_t thread;
        static cl_int content[ITEMS];
        parent = new_buffer();
        pthread_create(&thread, NULL, release_parent, NULL);
        cl_mem part = clCreateSubBuffer(parent, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                                        &(cl_buffer_region){0, SIZE / 2}, &error);
        count(error);
        pthread_join(thread, NULL);
        if (!part)
            continue;
        count(clEnqueueWriteBuffer(queue, part, CL_TRUE, 0, SIZE / 2, content, 0, NULL, NULL));
        count(clReleaseMemObject(part));
    }
}

static cl_mem image;
static void *mapped;
static pthread_barrier_t both;

static void *unmap(void *unused) {
    (void)unused;
    pthread_barrier_wait(&both);
    count(clEnqueueUnmapMemObject(queue, image, mapped, 0, NULL, NULL));
    return NULL;
}

/* Two threads unmap the same pointer, and the image is released meanwhile. */
static void unmaps(int rounds) {
    pthread_barrier_init(&both, NULL, 2);
    for (int round = 0; round < rounds && !stop; round++) {
        cl_int error;
        pthread_t threads[2];
        size_t pitch;
        image = clCreateImage(context, CL_MEM_READ_WRITE, &(cl_image_format){CL_RGBA, CL_UNORM_INT8},
                              &(cl_image_desc){.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH, .image_height = HEIGHT},
                              NULL, &error);
        if (count(error))
            continue;
        mapped = clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_WRITE, (size_t[3]){0}, (size_t[3]){WIDTH, HEIGHT, 1}, &pitch,
                                   NULL, 0, NULL, NULL, &error);
        if (count(error) || !mapped)
            continue;
        memset(mapped, round, WIDTH * HEIGHT * 4);
        for (int i = 0; i < 2; i++)
            pthread_create(&threads[i], NULL, unmap, NULL);
        if (round % 3 == 0)
            pthread_join(threads[0], NULL);
        if (round % 2)
            count(clFinish(queue));
        count(clReleaseMemObject(image));
        for (int i = round % 3 == 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
}

/* A command buffer is enqueued when the kernel that it has recorded, and that kernel's argument, are released. The argument
 * is not replaced before: PoCL 3.1 then fails natively, in programs that are in order. */
static void commands(int rounds) {
    clCreateCommandBufferKHR_fn create = (clCreateCommandBufferKHR_fn)(void *)clGetExtensionFunctionAddressForPlatform(platform, "clCreateCommandBufferKHR");
    clCommandNDRangeKernelKHR_fn record = (clCommandNDRangeKernelKHR_fn)(void *)clGetExtensionFunctionAddressForPlatform(platform, "clCommandNDRangeKernelKHR");
    clFinalizeCommandBufferKHR_fn finalize = (clFinalizeCommandBufferKHR_fn)(void *)clGetExtensionFunctionAddressForPlatform(platform, "clFinalizeCommandBufferKHR");
    clEnqueueCommandBufferKHR_fn enqueue = (clEnqueueCommandBufferKHR_fn)(void *)clGetExtensionFunctionAddressForPlatform(platform, "clEnqueueCommandBufferKHR");
    clReleaseCommandBufferKHR_fn release = (clReleaseCommandBufferKHR_fn)(void *)clGetExtensionFunctionAddressForPlatform(platform, "clReleaseCommandBufferKHR");
    if (!create || !record || !finalize || !enqueue || !release)
        return;
    for (int round = 0; round < rounds && !stop; round++) {
        cl_int error;
        cl_mem made = new_buffer();
        cl_kernel clone = clCloneKernel(kernel, &error);
        if (count(error))
            continue;
        set(clone, made);
        cl_command_buffer_khr buffer = create(1, &queue, NULL, &error);
        if (count(error))
            continue;
        count(record(buffer, NULL, NULL, clone, 1, NULL, &(size_t){ITEMS}, NULL, 0, NULL, NULL, NULL));
        count(finalize(buffer));
        count(clReleaseMemObject(made));
        count(clReleaseKernel(clone));
        for (int i = 0; i < 2; i++) {
            count(enqueue(0, NULL, buffer, 0, NULL, NULL));
            count(clFinish(queue));
        }
        count(release(buffer));
    }
}

static const struct {
    const char *name;
    void (*run)(int rounds);
} cases[] = {{"arguments", arguments}, {"clones", clones}, {"parts", parts}, {"unmaps", unmaps}, {"commands", commands}};

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "", *source = "kernel void add(global int *a, global int *b) { b[get_global_id(0)] += a[get_global_id(0)]; }";
    cl_int error;
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return 2;
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    queue = clCreateCommandQueueWithProperties(context, device, NULL, &error);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    if (error || clBuildProgram(program, 1, &device, "", NULL, NULL))
        return 2;
    kernel = clCreateKernel(program, "add", &error);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(name, cases[i].name) == 0)
            cases[i].run(argc > 2 ? atoi(argv[2]) : 300);
    count(clFinish(queue));
    printf("uses %ld, refused %ld\n", uses, refused);
    return lost ? 3 : 0;
}
