/* Unified shared memory of all kinds: what is known of it, kernels that use it, commands on it, calls that are wrong.
 *   usm [device]      with `device` only what needs no memory at one address in both processes */
#include "usm.h"

static const char *const source =
    "kernel void add(global int *a, int b) { a[get_global_id(0)] += b; }\n"
    "kernel void follow(global ulong *a) { *(global int *)a[0] += 5; }\n"
    "kernel void spin(global int *a, int n) { int x = a[0]; for (int i = 0; i < n; i++) x = x * 1664525 + i; a[0] = x; a[1] = 7; }\n";

enum { COUNT = 1000, BYTES = COUNT * sizeof(int) };

static void show_info(struct device *d, cl_context context, const char *name, char *pointer, char *base) {
    cl_unified_shared_memory_type_intel type = 7;
    char *start = NULL;
    size_t size = 7, got = 0;
    cl_device_id device = NULL;
    cl_int a = clGetMemAllocInfoINTEL_(context, pointer, CL_MEM_ALLOC_TYPE_INTEL, sizeof type, &type, &got);
    cl_int b = clGetMemAllocInfoINTEL_(context, pointer, CL_MEM_ALLOC_BASE_PTR_INTEL, sizeof start, &start, NULL);
    cl_int c = clGetMemAllocInfoINTEL_(context, pointer, CL_MEM_ALLOC_SIZE_INTEL, sizeof size, &size, NULL);
    cl_int e = clGetMemAllocInfoINTEL_(context, pointer, CL_MEM_ALLOC_DEVICE_INTEL, sizeof device, &device, NULL);
    printf("%s: %d %d %d %d: type %x (%zu bytes), base %d, size %zu, device %d\n", name, a, b, c, e, type, got,
           start ? start == base : -1, size, device ? device == d->device : -1);
}

static void show_wrong_sizes(struct device *d, cl_context other) {
    cl_ulong most = 0;
    MUST(clGetDeviceInfo(d->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL));
    const size_t sizes[] = {0, most + 1, (size_t)1 << 50, SIZE_MAX};
    cl_int status;
    for (int i = 0; i < 4; i++) {
        void *memory = clDeviceMemAllocINTEL_(d->context, d->device, NULL, sizes[i], 0, &status);
        printf("wrong size %d: %d, %d\n", i, memory != NULL, status);
    }
    const cl_uint alignments[] = {3, 1, 64, 4096, 1 << 16};
    for (int i = 0; i < 5; i++) {
        char *memory = clDeviceMemAllocINTEL_(d->context, d->device, NULL, 100, alignments[i], &status);
        printf("alignment %u: %d, %d, %d\n", alignments[i], memory != NULL, status, (int)((uintptr_t)memory % alignments[i]));
        MUST(clMemFreeINTEL_(d->context, memory));
    }
    const cl_mem_properties_intel lists[][3] = {{0}, {CL_MEM_ALLOC_FLAGS_INTEL, CL_MEM_ALLOC_WRITE_COMBINED_INTEL, 0},
                                                {CL_MEM_ALLOC_FLAGS_INTEL, 64, 0}, {77, 1, 0}};
    for (int i = 0; i < 4; i++) {
        void *memory = clDeviceMemAllocINTEL_(d->context, d->device, lists[i], 100, 0, &status);
        printf("properties %d: %d, %d\n", i, memory != NULL, status);
        MUST(clMemFreeINTEL_(d->context, memory));
    }
    status = 9;
    printf("no context: %d", clDeviceMemAllocINTEL_(NULL, d->device, NULL, 8, 0, &status) != NULL);
    printf(" %d\n", status);
    printf("no device: %d", clDeviceMemAllocINTEL_(d->context, NULL, NULL, 8, 0, &status) != NULL);
    printf(" %d\n", status);
    int own = 0;
    char *memory = clDeviceMemAllocINTEL_(d->context, d->device, NULL, 100, 0, &status);
    SHOW(clMemFreeINTEL_(d->context, NULL));
    SHOW(clMemFreeINTEL_(d->context, &own));
    SHOW(clMemFreeINTEL_(d->context, memory + 1));
    SHOW(clMemFreeINTEL_(other, memory));
    SHOW(clMemFreeINTEL_(NULL, memory));
    SHOW(clMemBlockingFreeINTEL_(d->context, &own));
    SHOW(clMemFreeINTEL_(d->context, memory));
    SHOW(clMemFreeINTEL_(d->context, memory));
    SHOW(clGetMemAllocInfoINTEL_(d->context, &own, 0x4196, 8, &own, NULL));
    SHOW(clGetMemAllocInfoINTEL_(d->context, &own, CL_MEM_ALLOC_SIZE_INTEL, 1, &own, NULL));
    SHOW(clGetMemAllocInfoINTEL_(NULL, &own, CL_MEM_ALLOC_SIZE_INTEL, 8, &most, NULL));
}

static void show_wrong_commands(struct device *d, cl_kernel add, char *memory) {
    int own[8] = {0}, pattern = 3;
    cl_command_queue q = d->queue;
    SHOW(clSetKernelArgMemPointerINTEL_(add, 1, memory));
    SHOW(clSetKernelArgMemPointerINTEL_(add, 9, memory));
    SHOW(clSetKernelArgMemPointerINTEL_(NULL, 0, memory));
    SHOW(clSetKernelArgMemPointerINTEL_(add, 0, NULL));
    SHOW(clEnqueueMemFillINTEL_(q, memory, &pattern, 4, BYTES + 4, 0, NULL, NULL));
    SHOW(clEnqueueMemFillINTEL_(q, memory, &pattern, 3, 99, 0, NULL, NULL));
    SHOW(clEnqueueMemFillINTEL_(q, memory, NULL, 4, 100, 0, NULL, NULL));
    SHOW(clEnqueueMemFillINTEL_(q, NULL, &pattern, 4, 100, 0, NULL, NULL));
    SHOW(clEnqueueMemFillINTEL_(q, memory + 1, &pattern, 4, 96, 0, NULL, NULL));
    SHOW(clEnqueueMemFillINTEL_(q, memory, &pattern, 4, 97, 0, NULL, NULL));
    SHOW(clEnqueueMemcpyINTEL_(q, CL_TRUE, own, memory + BYTES - 4, 8, 0, NULL, NULL));
    SHOW(clEnqueueMemcpyINTEL_(q, CL_TRUE, memory + BYTES - 4, own, 8, 0, NULL, NULL));
    SHOW(clEnqueueMemcpyINTEL_(q, CL_TRUE, memory, memory + 8, 16, 0, NULL, NULL));
    SHOW(clEnqueueMemcpyINTEL_(q, CL_TRUE, NULL, memory, 8, 0, NULL, NULL));
    SHOW(clEnqueueMemcpyINTEL_(q, CL_TRUE, own, memory, (size_t)1 << 60, 0, NULL, NULL));
    SHOW(clEnqueueMemcpyINTEL_(NULL, CL_TRUE, own, memory, 8, 0, NULL, NULL));
    SHOW(clEnqueueMemAdviseINTEL_(q, memory, BYTES, 0, 0, NULL, NULL));
    SHOW(clEnqueueMigrateMemINTEL_(q, memory, BYTES, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, NULL));
    SHOW(clEnqueueMigrateMemINTEL_(q, own, 8, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, NULL));
}

static void show_type(const char *name, cl_event event) {
    cl_command_type type = 0;
    cl_uint references = 0;
    MUST(clWaitForEvents(1, &event));
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL));
    MUST(clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof references, &references, NULL));
    printf("%s: command type %x, %u references\n", name, type, references);
    MUST(clReleaseEvent(event));
}

/* The same of an allocation of each kind, seen through copies. */
static void use(struct device *d, cl_kernel add, char *memory) {
    int numbers[COUNT], out[COUNT], b = 1000, zero = 0;
    size_t size = COUNT;
    cl_event event;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = i;
    MUST(clEnqueueMemcpyINTEL_(d->queue, CL_FALSE, memory, numbers, BYTES, 0, NULL, &event));
    show_type("copy", event);
    for (int i = 0; i < 3; i++) {
        MUST(clSetKernelArgMemPointerINTEL_(add, 0, memory));
        MUST(clSetKernelArg(add, 1, sizeof b, &b));
        MUST(clEnqueueNDRangeKernel(d->queue, add, 1, NULL, &size, NULL, 0, NULL, i == 1 ? &event : NULL));
        if (i == 1)
            show_type("kernel", event);
    }
    MUST(clEnqueueMemcpyINTEL_(d->queue, CL_TRUE, out, memory, BYTES, 0, NULL, NULL));
    printf("added: %lx, %d\n", digest(out, sizeof out), out[COUNT - 1]);
    MUST(clEnqueueMemFillINTEL_(d->queue, memory + 8, &zero, 4, BYTES - 8, 0, NULL, &event));
    show_type("fill", event);
    MUST(clEnqueueMemsetINTEL_(d->queue, memory, 0x21, 8, 0, NULL, NULL));
    MUST(clEnqueueMemcpyINTEL_(d->queue, CL_FALSE, out, memory, BYTES, 0, NULL, NULL));
    MUST(clFinish(d->queue));
    printf("filled: %lx, %x %d\n", digest(out, sizeof out), out[1], out[2]);
    MUST(clEnqueueMemcpyINTEL_(d->queue, CL_TRUE, memory + 16, memory, 8, 0, NULL, NULL));
    MUST(clEnqueueMemcpyINTEL_(d->queue, CL_TRUE, out, memory, BYTES, 0, NULL, NULL));
    printf("moved: %x\n", out[4]);
}

/* Freeing waits for what uses the memory; nothing else says that the kernel is over. */
static void free_in_use(struct device *d, cl_program program) {
    cl_kernel spin = kernel_of(program, "spin");
    int rounds = 50000000;
    const size_t one = 1;
    cl_int status;
    cl_event event;
    char *memory = clDeviceMemAllocINTEL_(d->context, d->device, NULL, BYTES, 0, &status);
    MUST(status);
    MUST(clSetKernelArgMemPointerINTEL_(spin, 0, memory));
    MUST(clSetKernelArg(spin, 1, sizeof rounds, &rounds));
    MUST(clEnqueueNDRangeKernel(d->queue, spin, 1, NULL, &one, NULL, 0, NULL, &event));
    MUST(clMemBlockingFreeINTEL_(d->context, memory));
    MUST(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
    printf("freed, and the kernel is over: %d\n", status == CL_COMPLETE);
    MUST(clReleaseEvent(event));
    /* A command that waits for what this thread does next uses another allocation: freeing does not wait for that. */
    char *other = clDeviceMemAllocINTEL_(d->context, d->device, NULL, BYTES, 0, &status);
    memory = clDeviceMemAllocINTEL_(d->context, d->device, NULL, BYTES, 0, &status);
    cl_event gate = clCreateUserEvent(d->context, &status);
    MUST(clSetKernelArgMemPointerINTEL_(spin, 0, other));
    MUST(clEnqueueNDRangeKernel(d->queue, spin, 1, NULL, &one, NULL, 1, &gate, NULL));
    MUST(clMemBlockingFreeINTEL_(d->context, memory));
    MUST(clSetUserEventStatus(gate, CL_COMPLETE));
    MUST(clMemBlockingFreeINTEL_(d->context, other));
    MUST(clReleaseEvent(gate));
    MUST(clReleaseKernel(spin));
    printf("freed what nothing uses\n");
}

/* Memory that the application's process has, too, with pointers in it. */
static void share(struct device *d, cl_program program) {
    static const cl_device_info names[] = {CL_DEVICE_HOST_MEM_CAPABILITIES_INTEL, CL_DEVICE_DEVICE_MEM_CAPABILITIES_INTEL,
                                           CL_DEVICE_SINGLE_DEVICE_SHARED_MEM_CAPABILITIES_INTEL};
    cl_int status;
    for (int i = 0; i < 3; i++) {
        cl_device_unified_shared_memory_capabilities_intel can = 0;
        MUST(clGetDeviceInfo(d->device, names[i], sizeof can, &can, NULL));
        printf("capabilities %d: %lx\n", i, (unsigned long)can);
    }
    int *host = clHostMemAllocINTEL_(d->context, NULL, BYTES, 0, &status);
    MUST(status);
    char **shared = clSharedMemAllocINTEL_(d->context, d->device, NULL, BYTES, 0, &status);
    MUST(status);
    show_info(d, d->context, "host", (char *)(host + 5), (char *)host);
    show_info(d, d->context, "shared", (char *)(shared + 5), (char *)shared);
    cl_kernel add = kernel_of(program, "add"), follow = kernel_of(program, "follow");
    use(d, add, (char *)host);
    use(d, add, (char *)shared);
    host[3] = 11;
    shared[0] = (char *)(host + 3);
    const cl_bool yes = CL_TRUE;
    const size_t one = 1;
    void *followed[] = {host};
    SHOW(clSetKernelExecInfo(follow, CL_KERNEL_EXEC_INFO_INDIRECT_HOST_ACCESS_INTEL, sizeof yes, &yes));
    SHOW(clSetKernelExecInfo(follow, CL_KERNEL_EXEC_INFO_INDIRECT_HOST_ACCESS_INTEL, sizeof yes, &yes));
    SHOW(clSetKernelExecInfo(follow, CL_KERNEL_EXEC_INFO_INDIRECT_SHARED_ACCESS_INTEL, 1, &yes));
    SHOW(clSetKernelExecInfo(follow, CL_KERNEL_EXEC_INFO_USM_PTRS_INTEL, sizeof followed, followed));
    for (int i = 0; i < 3; i++) {
        MUST(clSetKernelArgMemPointerINTEL_(follow, 0, shared));
        MUST(clEnqueueNDRangeKernel(d->queue, follow, 1, NULL, &one, NULL, 0, NULL, NULL));
    }
    MUST(clFinish(d->queue));
    printf("followed: %d\n", host[3]);
    cl_event event;
    MUST(clEnqueueMigrateMemINTEL_(d->queue, shared, BYTES, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, &event));
    MUST(clWaitForEvents(1, &event));
    MUST(clReleaseEvent(event));
    SHOW(clEnqueueMigrateMemINTEL_(d->queue, shared, BYTES + 1, CL_MIGRATE_MEM_OBJECT_HOST, 0, NULL, NULL));
    SHOW(clEnqueueMigrateMemINTEL_(d->queue, shared, BYTES, 99, 0, NULL, NULL));
    MUST(clReleaseKernel(add));
    MUST(clReleaseKernel(follow));
    MUST(clMemFreeINTEL_(d->context, host));
    MUST(clMemBlockingFreeINTEL_(d->context, shared));
}

int main(int argc, char **argv) {
    struct device d = open_usm_device(0);
    cl_int status;
    cl_context other = clCreateContext(NULL, 1, &d.device, NULL, NULL, &status);
    MUST(status);
    cl_program program = build(&d, source, "");
    cl_kernel add = kernel_of(program, "add");
    char *memory = clDeviceMemAllocINTEL_(d.context, d.device, NULL, BYTES, 0, &status);
    MUST(status);
    int own = 0;
    show_info(&d, d.context, "first", memory, memory);
    show_info(&d, d.context, "inner", memory + 77, memory);
    show_info(&d, d.context, "end", memory + BYTES, memory);
    show_info(&d, other, "another context", memory, memory);
    show_info(&d, d.context, "own", (char *)&own, memory);
    use(&d, add, memory);
    show_wrong_sizes(&d, other);
    show_wrong_commands(&d, add, memory);
    MUST(clMemBlockingFreeINTEL_(d.context, memory));
    free_in_use(&d, program);
    if (argc < 2 || strcmp(argv[1], "device") != 0)
        share(&d, program);
    MUST(clReleaseKernel(add));
    MUST(clReleaseProgram(program));
    MUST(clReleaseContext(other));
    close_device(&d);
    return 0;
}
