/* State of slicing for programs and kernels: if their source allows it, the values of arguments, what a work-group
 * costs. Nothing is remembered while slicing is off. */
#include "slicing.h"
#include "../server.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Settings: the node's, and from the environment of the API server --------------------------- */

struct slice_settings slice_settings;

static size_t slice_number(const char *name) {
    const char *text = getenv(name);
    long long number = text ? atoll(text) : 0;
    return number > 0 ? (size_t)number : 0;
}

static void read_slice_settings(void) {
    slice_settings.slice_ns = (double)aviary_slice_time();
    slice_settings.least_groups = slice_number("AVIARY_SLICE_MIN_GROUPS");
    slice_settings.fixed_groups = slice_number("AVIARY_SLICE_GROUPS");
    slice_settings.told = slice_number("AVIARY_SLICE_LOG") > 0;
}

int slice_is_on(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_slice_settings);
    return slice_settings.slice_ns > 0 || slice_settings.fixed_groups > 0;
}

/* ---- Records ----------------------------------------------------------------------------------- */

pthread_mutex_t slice_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slice_program *slice_programs;
static struct slice_kernel *slice_kernels;
static size_t slice_records, slice_sweep_at = 64;

static void free_slice_kernel(struct slice_kernel *kernel) {
    for (cl_uint i = 0; i < kernel->count; i++)
        free(kernel->arguments[i].bytes);
    free(kernel->arguments);
    kernel->program->uses--;
    free(kernel);
}

static void free_slice_program(struct slice_program *program) {
    for (struct slice_code *code = program->codes, *next; code; code = next) {
        next = code->next;
        free(code->name);
        free(code);
    }
    if (program->variant)
        clReleaseProgram(program->variant);
    free(program);
}

/* Metadata ends with its object and tells nobody: records whose object is gone are found now and then. */
static void sweep_slice_records(void) {
    if (slice_records < slice_sweep_at)
        return;
    for (struct slice_kernel **at = &slice_kernels, *kernel; (kernel = *at);) {
        const struct opencl_object *object = metadata(struct opencl_object, kernel->kernel);
        if (object && object->slicing == kernel) {
            at = &kernel->next;
            continue;
        }
        *at = kernel->next;
        free_slice_kernel(kernel);
        slice_records--;
    }
    for (struct slice_program **at = &slice_programs, *program; (program = *at);) {
        const struct opencl_object *object = metadata(struct opencl_object, program->program);
        if (program->uses > 0 || (object && object->slicing == program)) {
            at = &program->next;
            continue;
        }
        *at = program->next;
        free_slice_program(program);
        slice_records--;
    }
    slice_sweep_at = 2 * slice_records + 64;
}

/* The state of an object of the application; NULL: slicing is off. */
static struct opencl_object *sliced_object(void *handle) {
    return slice_is_on() ? metadata(struct opencl_object, handle) : NULL;
}

/* A new record is about to be put into its list; the lock is the caller's to release. */
static void begin_slice_record(void) {
    pthread_mutex_lock(&slice_lock);
    sweep_slice_records();
    slice_records++;
}

/* A program whose source is known, or one that was built anew. */
void opencl_note_source(cl_program handle) {
    struct opencl_object *object = sliced_object(handle);
    struct slice_program *program = object ? calloc(1, sizeof *program) : NULL;
    if (!program)
        return;
    begin_slice_record();
    program->program = handle;
    program->next = slice_programs;
    slice_programs = program;
    object->slicing = program;
    pthread_mutex_unlock(&slice_lock);
}

void opencl_note_build(cl_program handle) {
    const struct opencl_object *object = sliced_object(handle);
    if (object && object->slicing)
        opencl_note_source(handle);
}

void opencl_note_kernel(cl_kernel handle, cl_program from) {
    struct opencl_object *object = sliced_object(handle);
    const struct opencl_object *origin = object ? metadata(struct opencl_object, from) : NULL;
    cl_uint count = 0;
    if (!origin || !origin->slicing || clGetKernelInfo(handle, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL) != CL_SUCCESS)
        return;
    struct slice_kernel *kernel = calloc(1, sizeof *kernel);
    struct slice_argument *arguments = calloc(count + 1, sizeof *arguments);
    if (!kernel || !arguments) {
        free(kernel);
        free(arguments);
        return;
    }
    begin_slice_record();
    kernel->kernel = handle;
    kernel->program = origin->slicing;
    kernel->program->uses++;
    kernel->arguments = arguments;
    kernel->count = count;
    kernel->next = slice_kernels;
    slice_kernels = kernel;
    object->slicing = kernel;
    pthread_mutex_unlock(&slice_lock);
}

void opencl_note_kernels(cl_uint room, const cl_kernel *kernels, cl_program from) {
    size_t count = 0;
    if (!slice_is_on() || clGetProgramInfo(from, CL_PROGRAM_NUM_KERNELS, sizeof count, &count, NULL) != CL_SUCCESS)
        return;
    for (cl_uint i = 0; i < room && i < count; i++)
        opencl_note_kernel(kernels[i], from);
}

/* ---- Arguments --------------------------------------------------------------------------------- */

struct slice_kernel *slice_kernel_of(cl_kernel kernel) {
    const struct opencl_object *object = sliced_object(kernel);
    return object ? object->slicing : NULL;
}

static int keep_slice_argument(struct slice_argument *to, int kind, size_t size, const void *value) {
    unsigned char *bytes = NULL;
    if (kind == ARGUMENT_BYTES) {
        bytes = to->kind == ARGUMENT_BYTES && to->size == size ? to->bytes : malloc(size ? size : 1);
        if (!bytes)
            return 0;
        memcpy(bytes, value, size);
    }
    if (to->bytes != bytes)
        free(to->bytes);
    *to = (struct slice_argument){.kind = kind, .size = size, .svm = kind == ARGUMENT_SVM ? value : NULL, .bytes = bytes};
    return 1;
}

static void keep_argument(cl_kernel handle, cl_uint index, int kind, size_t size, const void *value) {
    struct slice_kernel *kernel = slice_kernel_of(handle);
    if (!kernel || index >= kernel->count)
        return;
    pthread_mutex_lock(&slice_lock);
    kernel->has_more |= !keep_slice_argument(&kernel->arguments[index], kind, size, value);
    pthread_mutex_unlock(&slice_lock);
}

void opencl_keep_argument(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    keep_argument(kernel, index, value ? ARGUMENT_BYTES : ARGUMENT_LOCAL, size, value);
}

void opencl_keep_svm_argument(cl_kernel kernel, cl_uint index, const void *pointer) {
    keep_argument(kernel, index, ARGUMENT_SVM, 0, pointer);
}

void opencl_keep_exec_info(cl_kernel handle) {
    struct slice_kernel *kernel = slice_kernel_of(handle);
    if (kernel)
        kernel->has_more = 1;
}

void opencl_note_clone(cl_kernel source, cl_kernel clone) {
    struct slice_kernel *from = slice_kernel_of(source);
    if (!from)
        return;
    opencl_note_kernel(clone, from->program->program);
    struct slice_kernel *to = slice_kernel_of(clone);
    if (!to)
        return;
    pthread_mutex_lock(&slice_lock);
    to->has_more = from->has_more;
    for (cl_uint i = 0; i < to->count && i < from->count; i++) {
        const struct slice_argument *argument = &from->arguments[i];
        const void *value = argument->kind == ARGUMENT_SVM ? argument->svm : argument->bytes;
        to->has_more |= !keep_slice_argument(&to->arguments[i], argument->kind, argument->size, value);
    }
    pthread_mutex_unlock(&slice_lock);
}

/* ---- What a kernel's source allows -------------------------------------------------------------- */

static char *text_of_program(cl_program program, cl_device_id device, int options) {
    size_t size = 0;
    cl_int status = options ? clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_OPTIONS, 0, NULL, &size)
                            : clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &size);
    char *text = status == CL_SUCCESS ? calloc(size + 1, 1) : NULL;
    if (text && size)
        status = options ? clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_OPTIONS, size, text, NULL)
                         : clGetProgramInfo(program, CL_PROGRAM_SOURCE, size, text, NULL);
    if (status == CL_SUCCESS)
        return text;
    free(text);
    return NULL;
}

/* Called with the lock held. */
struct slice_code *slice_judged_code(struct slice_kernel *kernel, cl_device_id device) {
    char name[512] = "", reason[128] = "its source is not known";
    if (kernel->code)
        return kernel->code;
    cl_program program = NULL;
    if (clGetKernelInfo(kernel->kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL) != CL_SUCCESS
        || clGetKernelInfo(kernel->kernel, CL_KERNEL_PROGRAM, sizeof program, &program, NULL) != CL_SUCCESS)
        return NULL;
    for (struct slice_code *known = kernel->program->codes; known; known = known->next)
        if (strcmp(known->name, name) == 0)
            return kernel->code = known;
    static unsigned long numbers;
    struct slice_code *code = calloc(1, sizeof *code);
    if (!code || !(code->name = strdup(name))) {
        free(code);
        return NULL;
    }
    size_t variables = 0;
    char *source = text_of_program(program, device, 0), *options = text_of_program(program, device, 1);
    code->number = ++numbers;
    code->verdict = SLICE_NEVER;
    if (clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE, sizeof variables, &variables, NULL)
            == CL_SUCCESS && variables > 0)
        snprintf(reason, sizeof reason, "its program has variables of its own");
    else if (source && source[0] && options)
        code->verdict = slice_judge(source, options, name, reason, sizeof reason);
    free(source);
    free(options);
    if (code->verdict == SLICE_NEVER)
        aviary_log("kernel %s is not sliced: %s", name, reason);
    code->next = kernel->program->codes;
    kernel->program->codes = code;
    return kernel->code = code;
}

/* The program that sub-launches take their kernel from. Called with the lock held. */
static cl_program program_to_slice(struct slice_kernel *kernel, cl_device_id device) {
    cl_program program = NULL;
    cl_context context = NULL;
    cl_int status;
    if (clGetKernelInfo(kernel->kernel, CL_KERNEL_PROGRAM, sizeof program, &program, NULL) != CL_SUCCESS
        || clGetKernelInfo(kernel->kernel, CL_KERNEL_CONTEXT, sizeof context, &context, NULL) != CL_SUCCESS)
        return NULL;
    if (kernel->code->verdict == SLICE_BY_OFFSET)
        return program;
    struct slice_program *of = kernel->program;
    if (of->variant_tried)
        return of->variant;
    of->variant_tried = 1;
    char *source = text_of_program(program, device, 0), *options = text_of_program(program, device, 1);
    char *rewritten = source ? slice_rewrite(source) : NULL;
    cl_program variant = rewritten && options ? clCreateProgramWithSource(context, 1, (const char **)&rewritten, NULL, &status) : NULL;
    if (variant && clBuildProgram(variant, 0, NULL, options, NULL, NULL) != CL_SUCCESS) {
        clReleaseProgram(variant);
        variant = NULL;
    }
    if (!variant)
        aviary_log("kernels of a program are not sliced: %s and others need another source, which cannot be built", kernel->code->name);
    free(source);
    free(options);
    free(rewritten);
    return of->variant = variant;
}

enum { SLICE_HIDDEN = 4 }; /* Parameters that a rewritten kernel has besides its own. */

/* A kernel with the same arguments that nobody else uses; NULL if there can be none. Called with the lock held. */
cl_kernel slice_kernel_copy(struct slice_kernel *kernel, cl_device_id device) {
    cl_program program = kernel->has_more ? NULL : program_to_slice(kernel, device);
    cl_int status = CL_SUCCESS;
    cl_kernel copy = program ? clCreateKernel(program, kernel->code->name, &status) : NULL;
    if (!copy || status != CL_SUCCESS)
        return NULL;
    for (cl_uint i = 0; i < kernel->count && status == CL_SUCCESS; i++) {
        const struct slice_argument *argument = &kernel->arguments[i];
        if (argument->kind == ARGUMENT_UNSET)
            status = CL_INVALID_KERNEL_ARGS;
        else if (argument->kind == ARGUMENT_SVM)
            status = clSetKernelArgSVMPointer(copy, i, argument->svm);
        else
            status = clSetKernelArg(copy, i, argument->size, argument->bytes);
    }
    if (status == CL_SUCCESS)
        return copy;
    clReleaseKernel(copy);
    return NULL;
}

/* ---- What a work-group costs -------------------------------------------------------------------- */

static unsigned bits_of(cl_ulong value) {
    return value ? 64 - (unsigned)__builtin_clzll(value) : 0;
}

/* Launches are alike if device, local size and the magnitudes of global sizes and of plain arguments are. */
cl_ulong slice_likeness(const struct slice_kernel *kernel, cl_device_id device, const size_t *size, const size_t *local) {
    cl_ulong hash = 14695981039346656037ul ^ (uintptr_t)device;
    for (int d = 0; d < 3; d++)
        hash = ((hash ^ bits_of(size[d])) * 1099511628211ul ^ local[d]) * 1099511628211ul;
    for (cl_uint i = 0; i < kernel->count; i++) {
        cl_ulong value = 0;
        const struct slice_argument *argument = &kernel->arguments[i];
        void *object = NULL;
        if (argument->kind != ARGUMENT_BYTES || argument->size > sizeof value)
            continue;
        memcpy(&value, argument->bytes, argument->size);
        if (argument->size == sizeof object)
            memcpy(&object, argument->bytes, sizeof object);
        /* Which buffer it is says nothing. */
        if (!object || !metadata(struct opencl_object, object))
            hash = (hash ^ bits_of(value)) * 1099511628211ul;
    }
    return hash | 1;
}

struct slice_cost *slice_cost_of(struct slice_code *code, cl_ulong likeness) {
    for (int i = 0; i < SLICE_COSTS; i++)
        if (code->costs[i].likeness == likeness)
            return &code->costs[i];
    return NULL;
}

void slice_learn_cost(struct slice_code *code, cl_ulong likeness, double group_ns) {
    struct slice_cost *cost = slice_cost_of(code, likeness);
    if (!cost) {
        cost = &code->costs[code->oldest++ % SLICE_COSTS];
        *cost = (struct slice_cost){.likeness = likeness};
    }
    cost->group_ns = group_ns;
}
