/* Objects that outlive the application's last reference.
 *
 * A buffer lives as long as its mappings, sub-buffers and images do, a program as long as its kernels, a queue as long as the events of
 * its commands, a context as long as what was made in it: the vendor's library keeps them, and an application may go on using the handle that it has given back. So the last release
 * of such an object waits here until nothing of it is left; the vendor, which would keep the object as long, sees no difference but the
 * time of that call. Retaining it meanwhile takes the release back.
 *
 * `held` counts what the object is for: the application's references as one, and each object or mapping that keeps it. Like `references`
 * it is 0 for one, so that a new record is right. A holder is let go before its own release is sent: the vendor has its own count.
 *
 * A queue whose release waits is flushed, as its release would do. */
#include "guest.h"

void opencl_begin_life(const void *handle, int life, const void *owner) {
    struct opencl_object *object = object_of(handle), *owns = object_of(owner);
    if (!object || object->life)
        return;
    object->life = life;
    if (!owns || !owns->life)
        return;
    object->owner = owner;
    __atomic_add_fetch(&owns->held, 1, __ATOMIC_ACQ_REL);
}

void opencl_begin_lives(cl_uint count, const cl_kernel *kernels, cl_program program) {
    for (cl_uint i = 0; kernels && i < count; i++)
        opencl_begin_life(kernels[i], OPENCL_KERNEL_LIFE, program);
}

void opencl_begin_copied_life(cl_kernel copy, cl_kernel source) {
    const struct opencl_object *object = object_of(source);
    opencl_begin_life(copy, OPENCL_KERNEL_LIFE, object ? object->owner : NULL);
}

void opencl_begin_image_life(cl_mem image, cl_context context, const cl_image_desc *desc) {
    opencl_begin_life(image, OPENCL_MEMORY_LIFE, desc && desc->mem_object ? (const void *)desc->mem_object : (const void *)context);
}

static void end(const void *handle, int life) {
    switch (life) {
    case OPENCL_CONTEXT_LIFE:
        clReleaseContext((cl_context)handle);
        break;
    case OPENCL_QUEUE_LIFE:
        clReleaseCommandQueue((cl_command_queue)handle);
        break;
    case OPENCL_MEMORY_LIFE:
        clReleaseMemObject((cl_mem)handle);
        break;
    case OPENCL_PROGRAM_LIFE:
        clReleaseProgram((cl_program)handle);
        break;
    default:
        break;
    }
}

void opencl_let_live(const void *handle) {
    struct opencl_object *object = object_of(handle);
    if (object && object->life)
        __atomic_add_fetch(&object->held, 1, __ATOMIC_ACQ_REL);
}

/* A flush that fails is told by what comes next: the release has succeeded. */
cl_int opencl_flush_kept(cl_command_queue queue) {
    clFlush(queue);
    return CL_SUCCESS;
}

/* The chain is at most an image of a buffer, the buffer, its context. */
void opencl_let_go(const void *handle) {
    struct opencl_object *object = object_of(handle);
    if (!object || !object->life || __atomic_fetch_sub(&object->held, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    const void *owner = object->owner;
    object->ends = 1;
    end(handle, object->life);
    opencl_let_go(owner);
}

int opencl_lives_on(const void *handle) {
    struct opencl_object *object = object_of(handle);
    if (!object || !object->life || object->ends)
        return 0;
    int others = __atomic_fetch_sub(&object->references, 1, __ATOMIC_ACQ_REL);
    if (others > 0)
        return 0;
    if (others < 0) {
        /* Released more often than retained: nothing of the application's is left to give back. */
        __atomic_add_fetch(&object->references, 1, __ATOMIC_ACQ_REL);
        return 1;
    }
    if (__atomic_fetch_sub(&object->held, 1, __ATOMIC_ACQ_REL) > 0)
        return 1;
    object->ends = 1;
    opencl_let_go(object->owner);
    return 0;
}

int opencl_lives_again(const void *handle) {
    struct opencl_object *object = object_of(handle);
    if (!object || !object->life || object->ends || __atomic_fetch_add(&object->references, 1, __ATOMIC_ACQ_REL) >= 0)
        return 0;
    __atomic_add_fetch(&object->held, 1, __ATOMIC_ACQ_REL);
    return 1;
}

void opencl_fix_references(const void *handle, cl_uint name, size_t size, void *value) {
    const struct opencl_object *object = object_of(handle);
    int is_count = name == CL_MEM_REFERENCE_COUNT || name == CL_CONTEXT_REFERENCE_COUNT || name == CL_PROGRAM_REFERENCE_COUNT
                   || name == CL_QUEUE_REFERENCE_COUNT;
    if (is_count && object && object->life && value && size >= sizeof(cl_uint)
        && __atomic_load_n(&object->references, __ATOMIC_ACQUIRE) < 0)
        *(cl_uint *)value -= 1;
}
