/* Declarations that the guest's files share. */
#ifndef OPENCL_GUEST_H
#define OPENCL_GUEST_H

#include "opencl_types.h"
#include "sizes.h"
#include <aviary/guest.h>

/* The guest's record of an object; NULL: it has none. */
static inline struct opencl_object *object_of(const void *handle) {
    return handle ? metadata(struct opencl_object, handle) : NULL;
}

/* True if these bytes, at least one, lie in the buffer. */
static inline int is_inside(const struct opencl_object *buffer, size_t offset, size_t size) {
    return size != 0 && offset <= buffer->size && size <= buffer->size - offset;
}

/* The properties that make a kernel's argument valid, beside its size. Images and sub-buffers have flags, formats and alignments of
 * their own: they have no shape here. */
enum { NO_SHAPE, SHAPE_LOCAL, SHAPE_VALUE, SHAPE_NULL, SHAPE_BUFFER, SHAPE_USM };

/* objects.c */
void opencl_note_object(const void *handle, int kind);
/* lives.c: a new object, which keeps its owner as long as it lives; `life` is one of OPENCL_..._LIFE. */
void opencl_begin_life(const void *handle, int life, const void *owner);
/* For as long as until the second call, the object outlives its last release. */
void opencl_let_live(const void *handle);
void opencl_let_go(const void *handle);
/* includes.c. The second one sends what a program may include, before it is built; always 0. */
void opencl_note_includes(cl_program program, cl_uint count, const char **texts, const size_t *lengths);
int opencl_place_includes(cl_program program, const char *options);
/* printing.c. All return 0. Texts end at their length, or with a NUL where it is 0 or there are none. */
int opencl_note_text(cl_uint count, const void *const *texts, const size_t *lengths);
int opencl_note_il(const void *il, size_t size);
int opencl_note_code(cl_uint count, const unsigned char *const *codes, const size_t *sizes);
/* Before a call in which kernels may print. */
int opencl_follow_output(void);
/* svm.c */
int opencl_svm_owns(const void *p);
/* A marker that waits as that command would, and is one to the application. */
cl_int opencl_enqueue_in_place_of(cl_command_type type, cl_command_queue queue, cl_uint events, const cl_event *wait_list,
                                  cl_event *event);
/* True if all devices of the context compute in the host's memory. */
int opencl_svm_possible(cl_context context);
/* usm.c: true if memory of this process can have the same address in the API server. */
int opencl_shares_memory(void);
int opencl_queue_lacks_svm(cl_command_queue queue);
/* True if the device computes in the host's memory. */
int opencl_runs_on_host(cl_device_id device);
/* host_memory.c: the same of all devices of the context, remembered. */
int opencl_computes_in_host_memory(cl_context context);

#endif
