/* The state of a session that moves: declarations that the files of its saving and loading share. */
#ifndef CUDA_MOVING_H
#define CUDA_MOVING_H

#include "server.h"
#include "unchanged.h"

/* ---- moving.c: contexts, and the end of all work ---------------------------------------------------- */

/* The context that is current on this thread; NULL: none is. */
CUcontext cuda_thread_context(void);
int cuda_context_lives(uint64_t serial);
/* A context that lives on that device; NULL: there is none. */
CUcontext cuda_context_on(CUdevice device);
/* The contexts that live: at most `room` of them are written; how many there are. */
size_t cuda_live_contexts(CUcontext *contexts, size_t room);
/* calls.c: the same of the current one. */
int cuda_kernels_print(void);
/* True if a kernel that prints was launched there, by this process or by one from which the session has moved. */
int cuda_has_printed(CUcontext context);
void cuda_set_printed(CUcontext context);
/* The reason for the session to stay where it is; NULL: there is none. */
const char *cuda_stays(void);

enum { CUDA_MOST_CONTEXTS = 256 };

/* ---- moving_stream.c: a description, then bytes of device memory ------------------------------------ */

/* An output: it stays the same from the first offset to the last. */
struct cuda_moved_output {
    char *head;
    size_t head_bytes;
    struct cuda_moved_part *parts;
    size_t part_count;
};

/* Appends to the head; 0: there is no memory, and the head is gone. */
int cuda_put_head(struct cuda_moved_output *output, const void *bytes, size_t count);
int cuda_put_part(struct cuda_moved_output *output, struct cuda_moved_part part);
/* Fills an empty output; 0: it cannot. */
typedef int (*cuda_moved_describe)(struct cuda_moved_output *output, void *data);
/* As `obj_state_cbs` want it: described at the first offset, and gone after the last piece. */
int64_t cuda_write_moved(struct cuda_moved_output *output, uint64_t offset, void *to, size_t bytes, cuda_moved_describe describe, void *data);

/* An input. The head comes first, in as many pieces as it likes; then `ready` says where the rest goes. */
struct cuda_moved_input {
    char *head;
    size_t head_bytes;
    struct cuda_moved_part *parts;
    size_t part_count;
    int is_ready;
};

/* Fills `parts` from the whole head, which is a snapshot's; 0: done. */
typedef int (*cuda_moved_ready)(struct cuda_moved_input *input, void *data);
int cuda_read_moved(struct cuda_moved_input *input, uint64_t offset, const void *from, size_t bytes, cuda_moved_ready ready, void *data);

/* ---- address_placement.c, reservations.c, host_registrations.c, adopted_memory.c: what lies where --- */

/* A chunk, or behind it a used part of it. */
struct cuda_placed {
    uint64_t base, bytes;
    /* Of a part: as the application asked for it. 0: this is a chunk. */
    uint64_t asked;
    int32_t device;
    /* Of a chunk: allocations share it. */
    uint16_t shared;
    /* Of a chunk: an `enum cuda_content`, and the number of the descriptor that is handed over. */
    uint16_t content;
    uint64_t handed;
    /* Of a chunk: whether it is a pool's, and the pool's number. */
    uint64_t is_pools, pool;
};
/* Both: in a process that has the descriptor, the session is made anew only to see if that works. */
enum cuda_content { CUDA_CONTENT_ENDED, CUDA_CONTENT_COPIED, CUDA_CONTENT_HANDED, CUDA_CONTENT_BOTH };
/* Hands the memory of the chunk at that address over; 0: it has to be copied. */
int cuda_hand_over_placed(struct cuda_placed *entry);
/* All chunks and their parts, in an array that the caller frees; NULL and a count of 0: none, or no memory. */
int cuda_list_placed(struct cuda_placed **entries, size_t *count);
/* The same in a process that has placed nothing yet. The entries are a snapshot's; those of both kinds of content become one that was
 * handed over, or is to be copied. */
CUresult cuda_place_again(struct cuda_placed *entries, size_t count);

/* ---- address_placement.c, physical.c: memory that leaves the device and returns to its address ------------ */

/* A piece of memory; `which`: what physical.c calls that, 0: a chunk. */
struct cuda_evictable {
    CUdeviceptr base;
    size_t bytes;
    uint64_t which;
    size_t piece;
};
/* Memory on that device that no other process has: at most `room` of it are written; how many there are. */
size_t cuda_list_chunks(CUdevice device, struct cuda_evictable *list, size_t room);
size_t cuda_list_physical(CUdevice device, struct cuda_evictable *list, size_t room);
/* Gives memory that the list has back to the driver, after its content was saved; on failure it is where it was. */
CUresult cuda_chunk_leaves(CUdeviceptr base, size_t piece);
CUresult cuda_physical_leaves(uint64_t which, size_t piece);
/* Makes memory for it at the address where it was; what is in it is for the caller to say. On failure it is out, as before. */
CUresult cuda_chunk_returns(CUdeviceptr base, size_t piece);
CUresult cuda_physical_returns(uint64_t which, size_t piece);

/* Reserves the addresses of a device, if that is not done. */
CUresult cuda_reserve_device(int device);

struct cuda_reserved {
    uint64_t base, bytes;
};
int cuda_list_reserved(struct cuda_reserved **entries, size_t *count);
CUresult cuda_reserve_again(const struct cuda_reserved *entries, size_t count);

/* Memory that both sides share and that is page-locked for the device. */
struct cuda_registered {
    uint64_t address, bytes;
    /* The number of the context that was current. */
    uint64_t context;
    uint64_t flags;
};
/* Pages of the arena that are mapped at an address of the application's own memory, too; `arena` is their first address. */
struct cuda_adopted {
    uint64_t at, bytes, arena;
};
int cuda_list_adopted(struct cuda_adopted **entries, size_t *count);
CUresult cuda_adopt_again(const struct cuda_adopted *entries, size_t count);
int cuda_is_adopted(CUdeviceptr at, size_t bytes);
int cuda_list_registered(struct cuda_registered **entries, size_t *count);
CUresult cuda_register_again(const struct cuda_registered *entries, size_t count);

/* ---- moving_code.c, mirrored_memory.c ---------------------------------------------------------------- */

/* The variables of an image that a module or a library was made of. */
void cuda_note_image(const void *owner, const void *image, size_t bytes);
void cuda_forget_image(const void *owner);
/* Why code that a context has cannot be moved; NULL: all of it can. */
const char *cuda_code_obstacle(void);
int cuda_has_managed_variables(void);
/* images.c: a compiler has said something that the application has not fetched yet. */
int cuda_has_unread_logs(void);
void cuda_forget_logs(void);

#endif
