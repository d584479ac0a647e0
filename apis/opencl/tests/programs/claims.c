/* What a device claims is there, and what it does not claim is refused as OpenCL says: shared virtual memory of each kind, native
 * kernels, lists of texts. Prints the same whatever is claimed. */
#include "../common.h"

/* cl_khr_spirv_queries, newer than some headers. */
#define EXTENDED_INSTRUCTION_SETS 0x12B9
#define SPIRV_EXTENSIONS 0x12BA

enum { COUNT = 256 };
static struct device d;
static cl_kernel kernel;
static int strange;

#define SHOULD(what, expected) should((what), (expected), #what)

static void should(cl_int got, cl_int expected, const char *what) {
    if (got == expected)
        return;
    strange++;
    printf("  %s: %d, not %d\n", what, got, expected);
}

static void said(const char *what) {
    printf("%s: %s\n", what, strange ? "strange" : "as claimed");
    strange = 0;
}

static void launch(void *memory) {
    size_t size = COUNT;
    SHOULD(clSetKernelArgSVMPointer(kernel, 0, memory), CL_SUCCESS);
    SHOULD(clEnqueueNDRangeKernel(d.queue, kernel, 1, NULL, &size, NULL, 0, NULL, NULL), CL_SUCCESS);
    SHOULD(clFinish(d.queue), CL_SUCCESS);
}

static int grew(const cl_uint *memory, cl_uint from) {
    int all = 1;
    for (cl_uint i = 0; i < COUNT; i++)
        all &= memory[i] == from + i + 1;
    return all;
}

static void use_svm(cl_svm_mem_flags flags, int maps) {
    cl_uint *memory = clSVMAlloc(d.context, CL_MEM_READ_WRITE | flags, COUNT * sizeof *memory, 0), copy[COUNT], fives = 5;
    SHOULD(memory != NULL, 1);
    if (!memory)
        return;
    if (maps)
        SHOULD(clEnqueueSVMMap(d.queue, CL_TRUE, CL_MAP_WRITE, memory, COUNT * sizeof *memory, 0, NULL, NULL), CL_SUCCESS);
    for (cl_uint i = 0; i < COUNT; i++)
        memory[i] = i + 7;
    if (maps)
        SHOULD(clEnqueueSVMUnmap(d.queue, memory, 0, NULL, NULL), CL_SUCCESS);
    launch(memory);
    SHOULD(clEnqueueSVMMemcpy(d.queue, CL_TRUE, copy, memory, sizeof copy, 0, NULL, NULL), CL_SUCCESS);
    SHOULD(grew(copy, 7), 1);
    if (!maps)
        SHOULD(grew(memory, 7), 1);
    SHOULD(clEnqueueSVMMemFill(d.queue, memory, &fives, sizeof fives, sizeof copy, 0, NULL, NULL), CL_SUCCESS);
    const void *all[] = {memory};
    size_t bytes = sizeof copy;
    SHOULD(clEnqueueSVMMigrateMem(d.queue, 1, all, &bytes, 0, 0, NULL, NULL), CL_SUCCESS);
    SHOULD(clEnqueueSVMMigrateMem(d.queue, 1, all, NULL, 0, 0, NULL, NULL), CL_SUCCESS);
    SHOULD(clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof all, all), CL_SUCCESS);
    SHOULD(clEnqueueSVMMemcpy(d.queue, CL_TRUE, copy, memory, sizeof copy, 0, NULL, NULL), CL_SUCCESS);
    SHOULD((cl_int)copy[COUNT - 1], 5);
    void *freed[] = {memory};
    SHOULD(clEnqueueSVMFree(d.queue, 1, freed, NULL, NULL, 0, NULL, NULL), CL_SUCCESS);
    SHOULD(clFinish(d.queue), CL_SUCCESS);
}

static void miss_svm(void) {
    cl_uint words[COUNT] = {0}, fives = 5;
    const void *all[] = {words};
    void *freed[] = {words};
    size_t bytes = sizeof words;
    SHOULD(clSVMAlloc(d.context, CL_MEM_READ_WRITE, sizeof words, 0) == NULL, 1);
    SHOULD(clSVMAlloc(d.context, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, sizeof words, 0) == NULL, 1);
    clSVMFree(d.context, NULL);
    SHOULD(clEnqueueSVMMap(d.queue, CL_TRUE, CL_MAP_WRITE, words, sizeof words, 0, NULL, NULL), CL_INVALID_OPERATION);
    SHOULD(clEnqueueSVMUnmap(d.queue, words, 0, NULL, NULL), CL_INVALID_OPERATION);
    SHOULD(clEnqueueSVMMemcpy(d.queue, CL_TRUE, words, words + 64, 64, 0, NULL, NULL), CL_INVALID_OPERATION);
    SHOULD(clEnqueueSVMMemFill(d.queue, words, &fives, sizeof fives, sizeof words, 0, NULL, NULL), CL_INVALID_OPERATION);
    SHOULD(clEnqueueSVMMigrateMem(d.queue, 1, all, &bytes, 0, 0, NULL, NULL), CL_INVALID_OPERATION);
    SHOULD(clEnqueueSVMFree(d.queue, 1, freed, NULL, NULL, 0, NULL, NULL), CL_INVALID_OPERATION);
    SHOULD(clSetKernelArgSVMPointer(kernel, 0, words), CL_INVALID_OPERATION);
    SHOULD(clSetKernelExecInfo(kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof all, all), CL_INVALID_OPERATION);
}

static void svm(void) {
    cl_device_svm_capabilities claimed = 0;
    MUST(clGetDeviceInfo(d.device, CL_DEVICE_SVM_CAPABILITIES, sizeof claimed, &claimed, NULL));
    if (claimed & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER)
        use_svm(0, 1);
    else
        miss_svm();
    if (claimed & CL_DEVICE_SVM_FINE_GRAIN_BUFFER)
        use_svm(CL_MEM_SVM_FINE_GRAIN_BUFFER, 0);
    said("shared virtual memory");
    if (claimed & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) {
        cl_uint *memory = malloc(COUNT * sizeof *memory);
        for (cl_uint i = 0; i < COUNT; i++)
            memory[i] = i + 3;
        launch(memory);
        SHOULD(grew(memory, 3), 1);
        free(memory);
    }
    said("memory of the program");
}

static void CL_CALLBACK native(void *arguments) {
    cl_uint *memory = *(cl_uint **)arguments;
    for (cl_uint i = 0; i < COUNT; i++)
        memory[i] += 100;
}

static void native_kernels(void) {
    cl_device_exec_capabilities claimed = 0;
    cl_uint words[COUNT] = {0};
    void *arguments[] = {NULL};
    const void *places[] = {&arguments[0]};
    MUST(clGetDeviceInfo(d.device, CL_DEVICE_EXECUTION_CAPABILITIES, sizeof claimed, &claimed, NULL));
    cl_mem buffer = buffer_of(&d, CL_MEM_COPY_HOST_PTR, sizeof words, words);
    int can = (claimed & CL_EXEC_NATIVE_KERNEL) != 0;
    SHOULD(clEnqueueNativeKernel(d.queue, native, arguments, sizeof arguments, 1, &buffer, places, 0, NULL, NULL),
           can ? CL_SUCCESS : CL_INVALID_OPERATION);
    SHOULD(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 0, sizeof words, words, 0, NULL, NULL), CL_SUCCESS);
    SHOULD((cl_int)words[COUNT - 1], can ? 100 : 0);
    MUST(clReleaseMemObject(buffer));
    said("native kernels");
}

static void texts(cl_device_info name) {
    const char *list[64];
    size_t bytes = 0;
    cl_int status = clGetDeviceInfo(d.device, name, 0, NULL, &bytes);
    if (status != CL_SUCCESS || bytes > sizeof list) {
        printf("texts %#x: none\n", name);
        return;
    }
    MUST(clGetDeviceInfo(d.device, name, bytes, list, NULL));
    printf("texts %#x: %zu", name, bytes / sizeof list[0]);
    for (size_t i = 0; i < bytes / sizeof list[0]; i++)
        printf(" %s", list[i]);
    puts("");
}

int main(void) {
    d = open_device(0);
    cl_program program = build(&d, "kernel void grow(global uint *a) { a[get_global_id(0)]++; }", "");
    kernel = kernel_of(program, "grow");
    svm();
    native_kernels();
    texts(EXTENDED_INSTRUCTION_SETS);
    texts(SPIRV_EXTENSIONS);
    MUST(clReleaseKernel(kernel));
    MUST(clReleaseProgram(program));
    close_device(&d);
    return 0;
}
