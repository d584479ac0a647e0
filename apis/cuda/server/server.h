/* Declarations that the server's files of this API share. */
#ifndef CUDA_SERVER_H
#define CUDA_SERVER_H

#include "cuda_types.h"
#include "layout.h"
#include "sealed_file.h"
#include <aviary/server.h>

/* Devices that have a range of addresses of their own (address_placement.c). */
enum { CUDA_MOST_PLACES = 8 };

/* ---- device_ordinal.c: on which device memory lies. A ordinal is the number of a device and 1; 0 is none ------ */

enum { ORDINAL_NAME_BYTES = 64 };

uint64_t cuda_ordinal_of_device(CUdevice device);
/* The ordinal of the current context's device. */
uint64_t cuda_ordinal_here(void);
/* NULL: there is no such ordinal, or `number` is not 0. */
const char *cuda_ordinal_name(uint64_t ordinal, unsigned int number);
/* An allocation of so many bytes found no memory. 1: memory of another session has left the device, and it is worth one
 * more try. */
int cuda_make_room(CUdevice device, size_t bytes);
/* Lowers what the device says to what the tenant may have of it. Either pointer may be NULL. */
void cuda_show_allowance(uint64_t ordinal, size_t *available, size_t *total);
CUresult cuda_destroy_known_pool(CUmemoryPool pool);
/* Before the driver is used: the name of a device among all that the node shows. */
void cuda_set_shown_name(const CUuuid *uuid, const char *name);
/* Each device has the same mark in every process; 0: there is no such device. */
unsigned int cuda_device_tag(CUdevice device);
/* The ordinal that a process with other devices has marked; `device` is its number here, -1 if it is not seen. */
uint64_t cuda_ordinal_of_tag(unsigned int tag, CUdevice *device);

/* Bytes of the device's memory that the node shares out; 0: it does not. */
uint64_t cuda_shared_bytes(int device);

/* ---- offers.c, fetched.c: memory and events for other processes of the tenant -------------------------------- */

/* True if something is offered; its name. */
struct cuda_offer {
    int stands;
    aviary_offer_name name;
    /* Of memory in pieces: what is offered is the list of these. */
    struct cuda_offer *pieces;
    size_t piece_count;
};

/* The number that is offered with an event: no memory is so large. */
#define CUDA_OFFERED_EVENT UINT64_MAX
/* The number that is offered with memory: above these bits the tag of its device, below them its size, which is one of whole granules,
 * and that the descriptor is that of a list of other offers' names. */
enum { CUDA_OFFERED_BYTES_BITS = 48, CUDA_OFFERED_LIST = 1 };
#define CUDA_OFFERED_BYTES ((((uint64_t)1 << CUDA_OFFERED_BYTES_BITS) - 1) & ~(uint64_t)CUDA_OFFERED_LIST)

/* Offers the descriptor, which it closes. */
CUresult cuda_offer_descriptor(struct cuda_offer *offer, int descriptor, uint64_t note);
/* Offers memory in pieces, one after the other; `bytes`: of all of them. The descriptors remain the caller's. */
CUresult cuda_offer_pieces(struct cuda_offer *offer, const int *exported, size_t count, size_t bytes, int device);
/* To be called before memory is released: the offer holds on to it. */
void cuda_end_offer(struct cuda_offer *offer);
void cuda_tell_offer_name(const struct cuda_offer *offer, aviary_shared_name *name);
/* True if memory of that device can be offered at all; drivers of some platforms cannot. */
int cuda_is_offerable(int device);
/* A descriptor that the caller closes; -1: there is no such offer. */
int cuda_fetch_offer(const aviary_shared_name *name, uint64_t *note);

/* Memory that another process offers, fetched for the call that follows on the same thread. */
struct cuda_fetched {
    int there;
    int descriptor;
    uint64_t bytes;
    int device;
    /* It is a list of pieces (cuda_offer_pieces). */
    int is_list;
};
extern __thread struct cuda_fetched cuda_fetched;

void cuda_drop_fetched(void);
/* Fetches an offer: the ordinal of the memory that importing it adds; 0: there is none. */
uint64_t cuda_ordinal_of_offer(const aviary_shared_name *name);
struct cuda_memory;
CUresult cuda_import_fetched(struct cuda_memory *memory);

/* ---- allocations.c: what may be copied and filled --------------------------------------------------- */

int cuda_keep_allocation(CUdeviceptr base, size_t bytes);
void cuda_drop_allocation(CUdeviceptr base);
size_t cuda_allocated_bytes(CUdeviceptr base);
int cuda_may_touch(CUdeviceptr pointer, size_t bytes);
int cuda_may_touch_rows(CUdeviceptr pointer, size_t pitch, size_t width, size_t element, size_t height);
int cuda_may_touch_box(CUdeviceptr pointer, size_t x, size_t y, size_t z, size_t pitch, size_t height,
                       const CUDA_MEMCPY3D *copy);
int cuda_may_run(const CUstreamBatchMemOpParams *operations, unsigned int count);

/* ---- address_placement.c, physical.c, reservations.c: where memory is -------------------------------------- */

/* A context may be current that has ended: placing memory looks from now on. */
void cuda_note_reset(void);
/* Where applications reserve: beside the placements of the current device, or of the first. */
CUresult cuda_application_window(CUdeviceptr *base, size_t *bytes);
int cuda_has_mappings(CUdeviceptr base, size_t bytes);
int cuda_may_map(CUdeviceptr base, size_t bytes);
CUresult cuda_reserve_for_application(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                      unsigned long long flags);
CUresult cuda_end_reservation(CUdeviceptr pointer, size_t bytes);

/* ---- images.c: images of device code, and the compiler's output ------------------------------------- */

enum { MOST_OPTIONS = 32 };

/* One of the compiler's two logs, of an image or of a linker. */
struct compiler_log {
    char *text;
    unsigned int bytes;
    /* Which of the options' values the driver changes to the number of bytes that it has written; -1: none. */
    int option;
};

/* True if all bytes that the image itself speaks of have arrived: the driver looks at as many. */
int cuda_image_is_whole(const void *image, size_t bytes);
void cuda_drop_log(struct compiler_log *log);
aviary_jit_outputs cuda_jit_outputs(const CUjit_option *options, void *const *values, unsigned int count);
/* The driver's options from those of a message; `options` and `values` have room for 2 * MOST_OPTIONS. */
CUresult cuda_spread_options(const aviary_jit_option *from, unsigned int *count, CUjit_option *options, void **values,
                             struct compiler_log *information, struct compiler_log *errors);

/* graph_memory.c: a graph of this process allocates. */
void cuda_note_graph_allocation(void);
/* Only pools of this process, in a device's memory. */
/* pools.c */
void cuda_settle_pools(void);
/* known_pools.c */
int cuda_has_captured_memory(void);
uint64_t cuda_room_for(uint64_t bytes, uint64_t ordinal);
int cuda_pool_allowed(const CUmemPoolProps *properties);

/* ---- moving.c: contexts and captures ----------------------------------------------------------------- */

/* A context that the application was told of, and its end. */
void cuda_note_context(CUcontext context, CUdevice device);
void cuda_forget_context(CUcontext context);
void cuda_note_primary_end(CUdevice device);
/* A capture has begun in the stream; it has ended, or the stream has. */
void cuda_note_capture_begun(CUstream stream);
void cuda_note_capture_ended(CUstream stream);

/* ---- contexts.c: what contexts take for themselves ------------------------------------------------------ */

CUresult cuda_retain_charged_context(CUcontext *context, CUdevice device);
/* Releases or resets it by the driver's function. */
CUresult cuda_end_primary_context(CUdevice device, CUresult (*end)(CUdevice));

/* ---- calls.c --------------------------------------------------------------------------------------- */

int cuda_may_pass(CUstream stream);
/* Puts the memory of a copy's sides, as it arrived, into the copy; a box must lie in it. */
CUresult cuda_put_sides(CUDA_MEMCPY3D *copy, void *from, size_t from_bytes, void *to, size_t to_bytes);

#endif
