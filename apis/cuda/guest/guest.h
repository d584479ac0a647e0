/* Declarations that the guest's files of this API share. */
#ifndef AVIARY_CUDA_GUEST_H
#define AVIARY_CUDA_GUEST_H
#include "cuda_types.h"
#include "layout.h"
#include "sealed_file.h"
#include <aviary/guest.h>
#include <stddef.h>
#include <stdint.h>

/* The guest's records of objects; NULL: it has none, as the handle is dead, or of another type. */
static inline struct cuda_context *cuda_context_of(CUcontext context) {
    return context ? metadata(struct cuda_context, context) : NULL;
}
/* A kernel may stand for its function, and the other way round. */
static inline struct cuda_code *cuda_code_of(const void *code) {
    return code ? metadata(struct cuda_code, code) : NULL;
}
static inline struct cuda_event *cuda_event_of(CUevent event) {
    return event ? metadata(struct cuda_event, event) : NULL;
}
static inline struct cuda_node *cuda_node_of(CUgraphNode node) {
    return node ? metadata(struct cuda_node, node) : NULL;
}
static inline struct cuda_linker *cuda_linker_of(CUlinkState state) {
    return state ? metadata(struct cuda_linker, state) : NULL;
}

/* entry_versions.c */
/* In which versions of CUDA (11020: 11.2) the function appeared as itself, as its _v2, _v3 and _v4; 0: there is no such form. */
struct cuda_entry_versions {
    const char *name;
    int since[4];
};
extern const struct cuda_entry_versions cuda_entry_versions[];
extern const size_t cuda_entry_count;

/* context.c */
CUcontext cuda_current_context(void);
int cuda_current_ordinal(void);
int cuda_has_context(void);
/* No context is current, with an error that stays or without. */
int cuda_lacks_context(void);
int cuda_has_other_contexts(void);

/* ranges.c */
int cuda_is_device_address(CUdeviceptr pointer);
/* How memory of the host became known to the driver: one way ends it. */
enum host_origin { HOST_REGISTERED, HOST_ALLOCATED, HOST_MANAGED, HOST_VARIABLE };
void cuda_note_host(void *memory, size_t bytes, unsigned int flags, enum host_origin origin);
CUresult cuda_claim_host(void *memory, size_t bytes, unsigned int flags);
int cuda_take_host(void *memory, enum host_origin origin, size_t *bytes);
int cuda_in_managed(CUdeviceptr pointer, size_t bytes);
void cuda_forget_device_ranges(CUdevice device);
void cuda_note_global(const CUdeviceptr *pointer, const size_t *bytes);
void cuda_note_opened(CUdeviceptr pointer, size_t bytes, CUdevice device);
void cuda_forget_opened(CUdeviceptr pointer);

/* function_state.c */
void cuda_context_ended(void);
uint64_t cuda_functions_epoch(void);
void cuda_note_new_code(void);
CUfunction cuda_function(CUfunction value);
/* A mark of the state in which a function's attributes were asked for. */
uint64_t cuda_function_state(const void *handle);
/* Spreads a value's bits over all 64. */
static inline uint64_t cuda_mixed(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}
/* Pointers to each parameter; the values follow. */
struct cuda_node_parameters {
    size_t count;
    void *pointers[];
};

/* copies.c */
struct cuda_host_sides {
    void *from, *to;
    size_t from_bytes, to_bytes;
};
int cuda_shared(const void *memory, size_t bytes);
CUresult cuda_copy_2d(const CUDA_MEMCPY2D *flat, CUstream stream);
CUresult cuda_copy_3d(const CUDA_MEMCPY3D *wanted, CUstream stream);
int cuda_is_readable(CUdeviceptr address, size_t bytes);
void cuda_split_copy(const CUDA_MEMCPY3D *wanted, CUDA_MEMCPY3D *copy, struct cuda_host_sides *sides);

/* graph_nodes.c, graph_memory.c */
/* The place of a node in a message: either a new one, or one that exists (in `exec`, if that is not NULL). */
struct cuda_place {
    CUgraphNode *made;
    CUgraph graph;
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *edges;
    size_t count;
    CUgraphExec exec;
    CUgraphNode node;
};
CUresult cuda_get_kernel_node(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *wanted);
CUresult cuda_alloc_node(const struct cuda_place *place, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *wanted);
CUresult cuda_free_node(const struct cuda_place *place, CUdeviceptr pointer);
CUresult cuda_batch_node(const struct cuda_place *place, const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *wanted);
CUresult cuda_conditional_node(const struct cuda_place *place, CUDA_CONDITIONAL_NODE_PARAMS *wanted);

/* graph_copies.c */
CUresult cuda_prepare_graph_copy(const CUDA_MEMCPY3D *wanted, CUDA_MEMCPY3D *copy, struct cuda_host_sides *sides,
                                 aviary_halves *halves);
void cuda_end_preparing(CUgraphExec exec, CUgraphNode node, const aviary_halves *halves, CUresult status);
int cuda_captures_host(CUstream stream);
int cuda_captures_box(const CUDA_MEMCPY3D *copy, CUstream stream);
CUresult cuda_capture_box(const CUDA_MEMCPY3D *wanted, CUstream stream);
CUresult cuda_capture_line(CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type, CUdeviceptr from, size_t bytes,
                           CUstream stream);

/* host_memory.c */
int cuda_shares_memory(void);
size_t cuda_whole_pages(size_t bytes);
CUresult cuda_shared_alloc(void **memory, size_t bytes, unsigned int register_flags);
CUresult cuda_shared_free(void *memory, size_t bytes);

/* image.c */
enum { MOST_OPTIONS = 32 };
/* The application's buffer for the compiler's output, and the place where it is told how much that was. */
struct log_buffer {
    char *text;
    unsigned int bytes;
    void **bytes_written;
};
struct log_buffers {
    struct log_buffer information, errors;
    /* Values of options that the compiler changes; NULL: not asked for. */
    void **wall_time, **threads;
};
void cuda_take_outputs(const struct log_buffers *logs, const aviary_jit_outputs *outputs);
/* The options that are numbers, of at most MOST_OPTIONS; of the buffers for the compiler's output their sizes. How many. */
unsigned int cuda_option_numbers(unsigned int count, const CUjit_option *options, void **values, aviary_jit_option *to,
                                 struct log_buffers *logs);
void cuda_take_log(struct log_buffer *log, const char *text, unsigned int bytes);
/* The content of a file, to be freed; NULL: it cannot be read. */
void *cuda_read_file(const char *path, size_t *size);

/* staging.c */
/* CLOCK_MONOTONIC in seconds. */
double cuda_seconds(void);

/* parallel_copy.c */
int cuda_gather_helpers(size_t bytes);
void cuda_dismiss_helpers(void);
void cuda_copy_together(char *to, const char *from, size_t bytes, int streamed);

/* mirrored_memory.c */
CUresult cuda_send_variables(void);
CUresult cuda_mapped_alloc(void **memory, size_t bytes);
int cuda_is_mapped(const void *memory);
CUresult cuda_mapped_free(void *memory);
void cuda_waited(CUresult result);

/* completion_polling.c */
void cuda_settled(CUresult result);
CUresult cuda_before_kernels(void);
CUresult cuda_await_stream(CUstream stream, uint32_t *word, uint32_t *expected, size_t bytes);

/* printing.c */
void cuda_note_new_kernels(void);
int cuda_kernels_are_silent(void);
void cuda_ask_whether_kernels_print(void);
int cuda_flush_output(void);
/* context.c */
int cuda_launches_block(void);

/* capture.c */
int cuda_capturing(void);

/* sticky_error.c */
void cuda_note_result(CUresult result);
int cuda_no_sticky_error(void);
int cuda_is_stream(CUstream stream);

/* launch.c */
CUresult cuda_pack(CUfunction function, void **parameters, void **extra, unsigned char *buffer, const void **packed,
                   size_t *bytes);
CUresult cuda_launch_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);

#endif
