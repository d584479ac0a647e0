/* Buffers on devices that compute in the host's own memory (CPUs).
 *
 * Such a buffer lies in memory that the application's process and the API server share, and the
 * vendor's library uses it in place. What the application wants to read, write or map is then in its
 * own address space: when no command can be using it, because everything in the queue has finished,
 * the call is answered here without a message and copies no more than the vendor's library would.
 *
 * Only queues that work in order are followed: for each, how many commands were enqueued, and how
 * many of them are known to have finished. Every function that enqueues says so (the specification's
 * `enqueued_count`); one that waits for its own command, as a blocking read does and a blocking write does not,
 * has also waited for all before it. */
#include "guest.h"
#include <string.h>

/* Below this, one message that carries the bytes costs less than one that waits and a copy. */
enum { WORTH_WAITING = 4096 };

static unsigned long loaded(const unsigned long *counter) {
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

/* ---- Queues --------------------------------------------------------------------------------- */

void opencl_note_queue(cl_command_queue queue, cl_context context, cl_command_queue_properties properties) {
    opencl_note_object(queue, OPENCL_QUEUE);
    struct opencl_object *object = object_of(queue);
    if (!object)
        return;
    object->context = context;
    object->in_order = !(properties & (CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_ON_DEVICE));
    object->profiled = (properties & CL_QUEUE_PROFILING_ENABLE) != 0;
}

void opencl_note_queue_with(cl_command_queue queue, cl_context context, const cl_queue_properties *list) {
    cl_command_queue_properties properties = 0;
    for (; list && list[0]; list += 2)
        if (list[0] == CL_QUEUE_PROPERTIES)
            properties = (cl_command_queue_properties)list[1];
    opencl_note_queue(queue, context, properties);
}

/* The queue gets other properties: it is not followed any more. */
void opencl_lose_track(cl_command_queue queue) {
    struct opencl_object *object = object_of(queue);
    if (object)
        object->in_order = 0;
}

/* Nor are queues that get commands out of command buffers, whose ends nobody announces. */
cl_uint opencl_lose_tracks(cl_uint count, const cl_command_queue *queues) {
    for (cl_uint i = 0; queues && i < count; i++)
        opencl_lose_track(queues[i]);
    return count;
}

/* A word counts the queue's commands and, in its low bits, those whose calls have not returned. Only when there
 * are none, apart from the caller's own, does the number say which commands the vendor has seen: a command
 * may be counted and still be on its way. Otherwise the enqueued_count is 0, which covers nothing. */
enum { UNDER_WAY_BITS = 16, UNDER_WAY = (1 << UNDER_WAY_BITS) - 1 };

static unsigned long commands(unsigned long word) {
    return word >> UNDER_WAY_BITS;
}

cl_ulong opencl_enqueues(cl_command_queue queue) {
    struct opencl_object *object = object_of(queue);
    if (!object)
        return 0;
    unsigned long word = __atomic_add_fetch(&object->enqueued, (1ul << UNDER_WAY_BITS) + 1, __ATOMIC_ACQ_REL);
    return (word & UNDER_WAY) == 1 ? commands(word) : 0;
}

/* The call that said `opencl_enqueues` is over. */
void opencl_enqueued(cl_command_queue queue) {
    struct opencl_object *object = object_of(queue);
    if (object)
        __atomic_sub_fetch(&object->enqueued, 1, __ATOMIC_ACQ_REL);
}

cl_ulong opencl_enqueued_count(cl_command_queue queue) {
    struct opencl_object *object = object_of(queue);
    unsigned long word = object ? loaded(&object->enqueued) : 0;
    return (word & UNDER_WAY) == 0 ? commands(word) : 0;
}

/* All commands up to `enqueued_count` have finished. */
static void finished(struct opencl_object *queue, unsigned long enqueued_count) {
    unsigned long known = loaded(&queue->finished);
    while (known < enqueued_count
           && !__atomic_compare_exchange_n(&queue->finished, &known, enqueued_count, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

void opencl_note_finished(cl_command_queue queue, cl_ulong enqueued_count) {
    struct opencl_object *object = object_of(queue);
    if (object && object->in_order)
        finished(object, enqueued_count);
}

/* clFinish waits for all commands, in whatever order they run. */
void opencl_note_drained(cl_command_queue queue, cl_ulong enqueued_count) {
    struct opencl_object *object = object_of(queue);
    if (object)
        finished(object, enqueued_count);
}

void opencl_note_event(const cl_event *event, cl_command_queue queue, cl_ulong enqueued_count) {
    struct opencl_object *object = event ? object_of(*event) : NULL;
    const struct opencl_object *on = object_of(queue);
    if (!object || !on)
        return;
    opencl_begin_life(*event, OPENCL_EVENT_LIFE, queue);
    object->queue = queue;
    object->queue_serial = on->serial;
    object->enqueued_count = enqueued_count;
}

void opencl_note_waited(cl_uint count, const cl_event *events) {
    for (cl_uint i = 0; events && i < count; i++) {
        const struct opencl_object *event = object_of(events[i]);
        struct opencl_object *queue = event ? object_of(event->queue) : NULL;
        if (queue && queue->in_order && queue->serial == event->queue_serial)
            finished(queue, event->enqueued_count);
    }
}

static int is_idle(const struct opencl_object *queue) {
    return loaded(&queue->finished) == commands(loaded(&queue->enqueued));
}

int opencl_idle(cl_command_queue queue) {
    const struct opencl_object *object = object_of(queue);
    return object && object->in_order && is_idle(object) && aviary_connected();
}

/* ---- Reading and writing -------------------------------------------------------------------- */

/* The conditions for it: the queue and the buffer are followed, and the vendor would accept the call. */
static int accepts(const struct opencl_object *queue, const struct opencl_object *buffer, cl_mem_flags forbidden) {
    return queue && queue->in_order && buffer && buffer->place && queue->context == buffer->context
           && !(buffer->flags & forbidden);
}

/* From here on the vendor's library copies at least as well: it sees the application's bytes where they are. */
enum { WORTH_SHOWING = 256 << 10 };

/* True if the queue's earlier commands are no obstacle: it is idle, or the call waits anyway and is large. */
static int may_go(const struct opencl_object *queue, cl_bool blocking, const void *host, size_t size, cl_uint events,
                  const cl_event *wait_list, int wants_event) {
    if (blocking && size >= WORTH_SHOWING && aviary_is_shared(host, size))
        return 0;
    if (!events && !wait_list && !wants_event && is_idle(queue))
        return aviary_connected();
    return blocking && size > WORTH_WAITING && !(wants_event && queue->profiled);
}

int opencl_reads_here(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t size,
                      const void *to, cl_uint events, const cl_event *wait_list, int wants_event) {
    const struct opencl_object *on = object_of(queue), *buffer = object_of(memory);
    return to && accepts(on, buffer, CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS) && is_inside(buffer, offset, size)
           && may_go(on, blocking, to, size, events, wait_list, wants_event);
}

int opencl_writes_here(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t size,
                       const void *from, cl_uint events, const cl_event *wait_list, int wants_event) {
    const struct opencl_object *on = object_of(queue), *buffer = object_of(memory);
    /* Waiting reads, and an event has to be a write's. */
    cl_mem_flags forbidden = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
    return from && !wants_event && accepts(on, buffer, forbidden) && is_inside(buffer, offset, size)
           && may_go(on, blocking, from, size, events, wait_list, 0);
}

/* Reading one byte waits for everything before it, and fails as reading all of them would. Writing one
 * does not wait: a blocking write returns when the application may change its memory again. */
static cl_int wait_by_reading(cl_command_queue queue, cl_mem memory, size_t offset, void *to, cl_uint events,
                              const cl_event *wait_list, cl_event *event) {
    if (!events && !wait_list && !event && opencl_idle(queue))
        return CL_SUCCESS;
    return clEnqueueReadBuffer(queue, memory, CL_TRUE, offset, 1, to, events, wait_list, event);
}

cl_int opencl_read_here(cl_command_queue queue, cl_mem memory, size_t offset, size_t size, void *to, cl_uint events,
                        const cl_event *wait_list, cl_event *event) {
    cl_int status = wait_by_reading(queue, memory, offset, to, events, wait_list, event);
    if (status == CL_SUCCESS)
        memmove(to, object_of(memory)->place + offset, size);
    return status;
}

cl_int opencl_write_here(cl_command_queue queue, cl_mem memory, size_t offset, size_t size, const void *from,
                         cl_uint events, const cl_event *wait_list) {
    char unused;
    cl_int status = wait_by_reading(queue, memory, offset, &unused, events, wait_list, NULL);
    if (status == CL_SUCCESS)
        memmove(object_of(memory)->place + offset, from, size);
    return status;
}

/* ---- Rectangles ----------------------------------------------------------------------------- */

/* One side of a rectangular transfer, with the pitches that 0 stands for. */
struct side {
    size_t start, row_pitch, slice_pitch;
};

static int laid_out(struct side *side, const size_t *origin, const size_t *region, size_t row_pitch, size_t slice_pitch) {
    side->row_pitch = row_pitch ? row_pitch : region[0];
    if (side->row_pitch < region[0] || __builtin_mul_overflow(side->row_pitch, region[1], &side->slice_pitch))
        return 0;
    if (slice_pitch && (slice_pitch < side->slice_pitch || slice_pitch % side->row_pitch))
        return 0;
    side->slice_pitch = slice_pitch ? slice_pitch : side->slice_pitch;
    size_t slices, rows;
    return !__builtin_mul_overflow(origin[2], side->slice_pitch, &slices)
           && !__builtin_mul_overflow(origin[1], side->row_pitch, &rows)
           && !__builtin_add_overflow(slices, rows, &side->start)
           && !__builtin_add_overflow(side->start, origin[0], &side->start);
}

/* Bytes from the first to the last one of the rectangle; 0: too many. */
static size_t span(const struct side *side, const size_t *region) {
    size_t slices, rows, sum;
    if (__builtin_mul_overflow(region[2] - 1, side->slice_pitch, &slices)
        || __builtin_mul_overflow(region[1] - 1, side->row_pitch, &rows) || __builtin_add_overflow(slices, rows, &sum)
        || __builtin_add_overflow(sum, region[0], &sum))
        return 0;
    return sum;
}

/* Rectangles are only transferred here when the queue is idle: the vendor judges all others. */
int opencl_rect_here(cl_command_queue queue, cl_mem memory, const size_t *buffer_origin, const size_t *host_origin,
                     const size_t *region, size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
                     size_t host_slice_pitch, const void *host, cl_uint events, const cl_event *wait_list,
                     int wants_event, int writes) {
    const struct opencl_object *on = object_of(queue), *buffer = object_of(memory);
    cl_mem_flags forbidden = CL_MEM_HOST_NO_ACCESS | (writes ? CL_MEM_HOST_READ_ONLY : CL_MEM_HOST_WRITE_ONLY);
    struct side there, here;
    if (!host || events || wait_list || wants_event || !accepts(on, buffer, forbidden) || !buffer_origin || !host_origin
        || !region || !region[0] || !region[1] || !region[2]
        || !laid_out(&there, buffer_origin, region, buffer_row_pitch, buffer_slice_pitch)
        || !laid_out(&here, host_origin, region, host_row_pitch, host_slice_pitch))
        return 0;
    size_t bytes = span(&there, region);
    return bytes && span(&here, region) && is_inside(buffer, there.start, bytes) && opencl_idle(queue);
}

cl_int opencl_move_rect(cl_mem memory, const size_t *buffer_origin, const size_t *host_origin, const size_t *region,
                        size_t buffer_row_pitch, size_t buffer_slice_pitch, size_t host_row_pitch,
                        size_t host_slice_pitch, void *host, int writes) {
    struct side there, here;
    laid_out(&there, buffer_origin, region, buffer_row_pitch, buffer_slice_pitch);
    laid_out(&here, host_origin, region, host_row_pitch, host_slice_pitch);
    char *place = object_of(memory)->place + there.start, *application = (char *)host + here.start;
    for (size_t z = 0; z < region[2]; z++)
        for (size_t y = 0; y < region[1]; y++) {
            char *inner = place + z * there.slice_pitch + y * there.row_pitch;
            char *outer = application + z * here.slice_pitch + y * here.row_pitch;
            memmove(writes ? inner : outer, writes ? outer : inner, region[0]);
        }
    return CL_SUCCESS;
}

/* ---- Mapping -------------------------------------------------------------------------------- */

static int claim(void *pointers[], void *is, void *becomes) {
    for (int i = 0; i < OPENCL_MAPPED_HERE; i++) {
        void *expected = is;
        if (__atomic_compare_exchange_n(&pointers[i], &expected, becomes, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 1;
    }
    return 0;
}

int opencl_maps_here(cl_command_queue queue, cl_mem memory, cl_map_flags how, size_t offset, size_t size,
                     cl_uint events, const cl_event *wait_list, int wants_event) {
    struct opencl_object *buffer = object_of(memory);
    cl_mem_flags forbidden = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
    int known = how == CL_MAP_READ || how == CL_MAP_WRITE || how == (CL_MAP_READ | CL_MAP_WRITE)
                || how == CL_MAP_WRITE_INVALIDATE_REGION;
    return known && !events && !wait_list && !wants_event && accepts(object_of(queue), buffer, forbidden)
           && is_inside(buffer, offset, size) && opencl_idle(queue) && claim(buffer->mapped, NULL, buffer->place + offset);
}

void *opencl_mapped_here(cl_mem memory, size_t offset, cl_int *status) {
    if (status)
        *status = CL_SUCCESS;
    opencl_let_live(memory);
    return object_of(memory)->place + offset;
}

int opencl_unmaps_here(cl_command_queue queue, cl_mem memory, void *pointer) {
    struct opencl_object *buffer = object_of(memory);
    const struct opencl_object *on = object_of(queue);
    return pointer && on && buffer && buffer->place && on->context == buffer->context
           && claim(buffer->mapped, pointer, NULL);
}

/* The vendor does not know the mapping. Where the order of its end or its event matter, there is a marker in its place. */
cl_int opencl_unmap_here(cl_command_queue queue, cl_mem memory, cl_uint events, const cl_event *wait_list, cl_event *event) {
    opencl_let_go(memory);
    if (!events && !wait_list && !event)
        return CL_SUCCESS;
    return opencl_enqueue_in_place_of(CL_COMMAND_UNMAP_MEM_OBJECT, queue, events, wait_list, event);
}

/* Mappings that only this library knows. */
static cl_uint mapped_here(const struct opencl_object *buffer) {
    cl_uint count = 0;
    for (int i = 0; i < OPENCL_MAPPED_HERE; i++)
        count += __atomic_load_n(&buffer->mapped[i], __ATOMIC_ACQUIRE) != NULL;
    return count;
}

/* ---- Where buffers lie ---------------------------------------------------------------------- */

/* Memory of a buffer whose creation failed: the next one of the thread uses it. */
static _Thread_local void *spare_place;
static _Thread_local size_t spare_size;

int opencl_computes_in_host_memory(cl_context context) {
    struct opencl_object *object = object_of(context);
    if (!object)
        return 0;
    if (!object->reach)
        object->reach = opencl_svm_possible(context) ? 1 : 2;
    return object->reach == 1;
}

void *opencl_place(cl_context context, cl_mem_flags flags, size_t size, const void *host_ptr) {
    int copies = (flags & CL_MEM_COPY_HOST_PTR) != 0;
    if ((flags & CL_MEM_USE_HOST_PTR) || copies != (host_ptr != NULL) || size == 0 || size > OPENCL_LARGEST_PLACE)
        return NULL;
    if (!(flags & CL_MEM_ALLOC_HOST_PTR) && !opencl_computes_in_host_memory(context))
        return NULL;
    if (spare_place && spare_size != size) {
        aviary_zerocopy_free(spare_place);
        spare_place = NULL;
    }
    if (!spare_place)
        spare_place = aviary_zerocopy_alloc_uninitialized(size);
    spare_size = size;
    return spare_place;
}

/* The buffer exists, so its size was valid and the application has that many bytes to copy. */
void opencl_note_place(cl_mem buffer, cl_context context, size_t size, const void *host_ptr, void *place) {
    struct opencl_object *object = object_of(buffer);
    if (!place || !object)
        return;
    spare_place = NULL;
    object->placed = 1;
    /* Elsewhere the vendor's library may keep a copy on the device: only mapping it is as good as the memory. */
    if (opencl_computes_in_host_memory(context))
        object->place = place;
    if (host_ptr)
        memcpy(place, host_ptr, size);
    aviary_zerocopy_lend(place);
}

void opencl_note_sub_place(cl_mem buffer, cl_mem parent, cl_mem_flags flags, const void *info) {
    const cl_buffer_region *region = info;
    struct opencl_object *object = object_of(buffer);
    const struct opencl_object *whole = object_of(parent);
    if (!object || !whole || !region)
        return;
    cl_mem_flags access = CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
    object->placed = whole->placed;
    object->flags = (flags & access) ? (whole->flags & ~access) | (flags & access) : whole->flags;
    object->context = whole->context;
    object->size = region->size;
    object->place = whole->place ? whole->place + region->origin : NULL;
}

void opencl_fix_placed(cl_mem memory, cl_mem_info name, size_t size, void *value) {
    const struct opencl_object *object = object_of(memory);
    if (!object || !object->placed || !value)
        return;
    /* That a buffer was placed is between this library and the server. */
    if (name == CL_MEM_FLAGS && size >= sizeof(cl_mem_flags)) {
        cl_mem_flags flags = *(cl_mem_flags *)value & ~(cl_mem_flags)CL_MEM_USE_HOST_PTR;
        *(cl_mem_flags *)value = flags | (object->flags & (CL_MEM_ALLOC_HOST_PTR | CL_MEM_COPY_HOST_PTR));
    }
    if (name == CL_MEM_MAP_COUNT && size >= sizeof(cl_uint))
        *(cl_uint *)value += mapped_here(object);
}
