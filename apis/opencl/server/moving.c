/* The state of objects that no call brings back where a session moves: contents of memory, complete events; and the end of all
 * commands before that. */
#include "server.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- The end of all commands ------------------------------------------------------------------ */

/* How long one question waits for the commands, and for each queue more; how often it looks meanwhile. */
#define QUIET_NS 5000000
#define QUEUE_QUIET_NS 20000
#define LOOK_US 50

/* A queue that the application has made, perhaps an ended one until the next question, and the marker behind its commands: one at a time,
 * kept until it is reached, and the queue with it. */
struct known_queue {
    cl_command_queue queue;
    cl_event marker;
    struct opencl_held_queue held;
    enum { NOT_ASKED, ASKED, QUIET } answer; /* of the present question */
};
static struct {
    pthread_mutex_t lock;
    struct known_queue *all;
    size_t count, room;
} queues = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* There was no memory for one: nothing tells when its commands have ended. */
static int queues_unknown;

/* Zero-initialised for each new object: true only of a queue, whatever had this address before. */
static int is_queue(cl_command_queue queue) {
    const struct opencl_object *object = metadata(struct opencl_object, queue);
    return object && object->kind == OPENCL_QUEUE;
}

/* True if the queue has no marker, or no longer. With the lock. */
static int let_go_reached(struct known_queue *known) {
    if (known->marker && opencl_has_ended(known->marker)) {
        clReleaseEvent(known->marker);
        opencl_let_go_queue(known->held);
        known->marker = NULL;
    }
    return !known->marker;
}

static void forget_ended_queues(void) {
    for (size_t at = 0; at < queues.count;)
        if (is_queue(queues.all[at].queue) || !let_go_reached(&queues.all[at]))
            at++;
        else
            queues.all[at] = queues.all[--queues.count];
}

/* Room for one more; 0: there is none. With the lock. */
static int has_room(void) {
    if (queues.count == queues.room)
        forget_ended_queues();
    if (queues.count < queues.room)
        return 1;
    size_t room = queues.room ? 2 * queues.room : 16;
    struct known_queue *larger = realloc(queues.all, room * sizeof *larger);
    if (larger) {
        queues.all = larger;
        queues.room = room;
    }
    return larger != NULL;
}

void opencl_note_made_queue(cl_command_queue queue) {
    struct opencl_object *object = queue ? metadata(struct opencl_object, queue) : NULL;
    if (!object)
        return;
    pthread_mutex_lock(&queues.lock);
    if (has_room())
        queues.all[queues.count++] = (struct known_queue){.queue = queue};
    else
        queues_unknown = 1;
    object->kind = OPENCL_QUEUE;
    pthread_mutex_unlock(&queues.lock);
}

/* True once all commands of the queue have ended that were there when the question began. A marker of an earlier question is before
 * some of them: another one follows it. With the lock. */
static int is_quiet(struct known_queue *known) {
    if (known->answer == QUIET || !let_go_reached(known))
        return known->answer == QUIET;
    if (known->answer == NOT_ASKED && is_queue(known->queue)) {
        if (!opencl_hold_queue(known->queue, &known->held))
            return 0;
        if (opencl_enqueue_last_marker(known->queue, &known->marker) != CL_SUCCESS) {
            known->marker = NULL;
            opencl_let_go_queue(known->held);
            return 0;
        }
        known->answer = ASKED;
        if (clFlush(known->queue) != CL_SUCCESS || !let_go_reached(known))
            return 0;
    }
    known->answer = QUIET;
    return 1;
}

/* How many queues are not quiet. Each gets its marker at the first look: they are waited for together. With the lock. */
static size_t count_busy(void) {
    size_t busy = 0;
    for (size_t at = 0; at < queues.count; at++)
        busy += !is_quiet(&queues.all[at]);
    return busy;
}

/* 0: all commands have ended. 1: not yet. -1: not before the application has set its user events. */
int opencl_quiesce(void) {
    if (opencl_has_awaited_events())
        return -1;
    pthread_mutex_lock(&queues.lock);
    for (size_t at = 0; at < queues.count; at++)
        queues.all[at].answer = NOT_ASKED;
    size_t busy = count_busy();
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until = opencl_later(until, QUIET_NS + (uint64_t)queues.count * QUEUE_QUIET_NS);
    for (; busy && !opencl_has_passed(until); busy = count_busy())
        usleep(LOOK_US);
    int left = busy || queues_unknown;
    pthread_mutex_unlock(&queues.lock);
    return left;
}

/* ---- Contents of memory ------------------------------------------------------------------------ */

#define MOST_DEVICES 64

/* The devices of the memory's context, and how many; 0: they cannot be had. */
static size_t devices_of(cl_mem memory, cl_context *context, cl_device_id devices[MOST_DEVICES]) {
    size_t bytes = 0;
    if (clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof *context, context, NULL) != CL_SUCCESS
        || clGetContextInfo(*context, CL_CONTEXT_DEVICES, 0, NULL, &bytes) != CL_SUCCESS || bytes > MOST_DEVICES * sizeof *devices
        || clGetContextInfo(*context, CL_CONTEXT_DEVICES, bytes, devices, NULL) != CL_SUCCESS)
        return 0;
    return bytes / sizeof *devices;
}

/* Memory that the application's process shares, in which only CPUs compute: the bytes are there after a move, and the application may
 * write them meanwhile. */
static int lies_in_arena(cl_mem memory) {
    cl_context context = NULL;
    cl_device_id devices[MOST_DEVICES];
    void *host = NULL;
    if (clGetMemObjectInfo(memory, CL_MEM_HOST_PTR, sizeof host, &host, NULL) != CL_SUCCESS || !host || !aviary_is_zerocopy(host))
        return 0;
    size_t count = devices_of(memory, &context, devices);
    for (size_t at = 0; at < count; at++) {
        cl_device_type type = 0;
        if (clGetDeviceInfo(devices[at], CL_DEVICE_TYPE, sizeof type, &type, NULL) != CL_SUCCESS || !(type & CL_DEVICE_TYPE_CPU))
            return 0;
    }
    return count > 0;
}

/* The shape of an image whose rows lie one behind the other. */
struct rows {
    size_t element, width, height, bytes, count;
};

static size_t image_number(cl_mem image, cl_image_info name) {
    size_t number = 0;
    return clGetImageInfo(image, name, sizeof number, &number, NULL) == CL_SUCCESS ? number : 0;
}

static struct rows rows_of(cl_mem image, cl_mem_object_type type) {
    size_t height = image_number(image, CL_IMAGE_HEIGHT), depth = image_number(image, CL_IMAGE_DEPTH);
    size_t layers = image_number(image, CL_IMAGE_ARRAY_SIZE);
    if (type == CL_MEM_OBJECT_IMAGE1D_ARRAY)
        height = layers;
    if (type == CL_MEM_OBJECT_IMAGE2D_ARRAY)
        depth = layers;
    struct rows rows = {.element = image_number(image, CL_IMAGE_ELEMENT_SIZE), .width = image_number(image, CL_IMAGE_WIDTH)};
    rows.height = height ? height : 1;
    rows.bytes = rows.element * rows.width;
    rows.count = rows.height * (depth ? depth : 1);
    return rows;
}

/* What moves bytes between memory of the host and a memory object: directly, or (`between`) through a buffer where the application has
 * said that the host does not touch the object. */
struct mover {
    cl_command_queue queue;
    cl_mem memory, between;
    int writes;
};

/* Bytes that the buffer between has at least. */
#define PIECE_BYTES ((size_t)4 << 20)

static cl_int move_bytes(const struct mover *mover, cl_mem buffer, size_t offset, char *host, size_t bytes) {
    return mover->writes ? clEnqueueWriteBuffer(mover->queue, buffer, CL_TRUE, offset, bytes, host, 0, NULL, NULL)
                         : clEnqueueReadBuffer(mover->queue, buffer, CL_TRUE, offset, bytes, host, 0, NULL, NULL);
}

static cl_int move_buffer(const struct mover *mover, size_t offset, char *host, size_t bytes) {
    if (!mover->between)
        return move_bytes(mover, mover->memory, offset, host, bytes);
    cl_int status = CL_SUCCESS;
    for (size_t done = 0; status == CL_SUCCESS && done < bytes; done += PIECE_BYTES) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES, at = offset + done;
        if (mover->writes)
            status = move_bytes(mover, mover->between, 0, host + done, part);
        cl_mem from = mover->writes ? mover->between : mover->memory, to = mover->writes ? mover->memory : mover->between;
        if (status == CL_SUCCESS)
            status = clEnqueueCopyBuffer(mover->queue, from, to, mover->writes ? 0 : at, mover->writes ? at : 0, part, 0, NULL, NULL);
        if (status == CL_SUCCESS && !mover->writes)
            status = move_bytes(mover, mover->between, 0, host + done, part);
    }
    return status;
}

/* Moves so many whole rows, all in one layer of the image. */
static cl_int move_whole_rows(const struct mover *mover, const struct rows *rows, size_t row, size_t count, char *host) {
    size_t origin[3] = {0, row % rows->height, row / rows->height}, region[3] = {rows->width, count, 1};
    cl_command_queue queue = mover->queue;
    cl_mem image = mover->memory, between = mover->between;
    if (!between)
        return mover->writes ? clEnqueueWriteImage(queue, image, CL_TRUE, origin, region, 0, 0, host, 0, NULL, NULL)
                             : clEnqueueReadImage(queue, image, CL_TRUE, origin, region, 0, 0, host, 0, NULL, NULL);
    if (!mover->writes) {
        cl_int status = clEnqueueCopyImageToBuffer(queue, image, between, origin, region, 0, 0, NULL, NULL);
        return status == CL_SUCCESS ? move_bytes(mover, between, 0, host, count * rows->bytes) : status;
    }
    cl_int status = move_bytes(mover, between, 0, host, count * rows->bytes);
    return status == CL_SUCCESS ? clEnqueueCopyBufferToImage(queue, between, image, 0, origin, region, 0, NULL, NULL) : status;
}

/* Moves a part of one row, through memory for a whole one. */
static cl_int move_part(const struct mover *mover, const struct rows *rows, uint64_t offset, char *host, size_t bytes) {
    char *whole = malloc(rows->bytes);
    if (!whole)
        return CL_OUT_OF_HOST_MEMORY;
    size_t row = offset / rows->bytes, at = offset % rows->bytes;
    struct mover reader = *mover;
    reader.writes = 0;
    cl_int status = move_whole_rows(&reader, rows, row, 1, whole);
    if (status == CL_SUCCESS)
        memcpy(mover->writes ? whole + at : host, mover->writes ? host : whole + at, bytes);
    if (status == CL_SUCCESS && mover->writes)
        status = move_whole_rows(mover, rows, row, 1, whole);
    free(whole);
    return status;
}

/* Moves bytes between memory of the host and the rows of an image, of which the first and the last may be parts. Each command costs as
 * much as many rows. */
static cl_int move_rows(const struct mover *mover, const struct rows *rows, uint64_t offset, char *host, size_t bytes) {
    cl_int status = CL_SUCCESS;
    size_t most = mover->between && rows->bytes <= PIECE_BYTES ? PIECE_BYTES / rows->bytes : mover->between ? 1 : SIZE_MAX;
    while (status == CL_SUCCESS && bytes) {
        size_t row = offset / rows->bytes, at = offset % rows->bytes, part = rows->bytes - at;
        part = part < bytes ? part : bytes;
        if (part < rows->bytes) {
            status = move_part(mover, rows, offset, host, part);
        } else {
            size_t in_layer = rows->height - row % rows->height, count = bytes / rows->bytes;
            count = count < in_layer ? count : in_layer;
            count = count < most ? count : most;
            part = count * rows->bytes;
            status = move_whole_rows(mover, rows, row, count, host);
        }
        offset += part;
        host += part;
        bytes -= part;
    }
    return status;
}

/* The bytes that a memory object has of its own: none where they are another's, or lie in the arena. */
static uint64_t own_bytes(cl_mem memory, cl_mem_object_type *type, struct rows *rows) {
    cl_mem parent = NULL;
    size_t bytes = 0;
    *type = 0;
    if (lies_in_arena(memory)
        || clGetMemObjectInfo(memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL) != CL_SUCCESS || parent
        || clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof *type, type, NULL) != CL_SUCCESS)
        return 0;
    if (*type != CL_MEM_OBJECT_BUFFER) {
        *rows = rows_of(memory, *type);
        return (uint64_t)rows->bytes * rows->count;
    }
    return clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof bytes, &bytes, NULL) == CL_SUCCESS ? bytes : 0;
}

uint64_t opencl_content_bytes(cl_mem memory) {
    cl_mem_object_type type;
    struct rows rows = {0};
    return own_bytes(memory, &type, &rows);
}

/* Has a buffer between where the host may not do that; 0: there is none. */
static int begin_moving(struct mover *mover, const struct rows *rows) {
    const cl_mem_flags closed = mover->writes ? CL_MEM_HOST_READ_ONLY | CL_MEM_HOST_NO_ACCESS
                                              : CL_MEM_HOST_WRITE_ONLY | CL_MEM_HOST_NO_ACCESS;
    cl_mem_flags flags = 0;
    cl_context context = NULL;
    cl_device_id devices[MOST_DEVICES];
    if (clGetMemObjectInfo(mover->memory, CL_MEM_FLAGS, sizeof flags, &flags, NULL) != CL_SUCCESS
        || !devices_of(mover->memory, &context, devices))
        return 0;
    size_t bytes = rows->bytes > PIECE_BYTES ? rows->bytes : PIECE_BYTES;
    /* A part of a row is read before it is written. */
    int is_closed = flags & closed || (mover->writes && rows->bytes && flags & CL_MEM_HOST_WRITE_ONLY);
    mover->queue = clCreateCommandQueue(context, devices[0], 0, NULL);
    mover->between = mover->queue && is_closed ? clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, NULL) : NULL;
    return mover->queue && (mover->between || !is_closed);
}

static void end_moving(struct mover *mover) {
    if (mover->queue) {
        clFinish(mover->queue);
        clReleaseCommandQueue(mover->queue);
    }
    if (mover->between)
        clReleaseMemObject(mover->between);
}

/* Moves so many bytes; how many it were, negative: that failed. */
static int64_t move_content(cl_mem memory, uint64_t offset, void *host, size_t bytes, int writes) {
    cl_mem_object_type type;
    struct rows rows = {0};
    uint64_t all = own_bytes(memory, &type, &rows);
    if (offset >= all)
        return 0;
    bytes = all - offset < bytes ? all - offset : bytes;
    struct mover mover = {.memory = memory, .writes = writes};
    cl_int status = CL_OUT_OF_RESOURCES;
    if (begin_moving(&mover, &rows))
        status = type == CL_MEM_OBJECT_BUFFER ? move_buffer(&mover, offset, host, bytes) : move_rows(&mover, &rows, offset, host, bytes);
    end_moving(&mover);
    return status == CL_SUCCESS ? (int64_t)bytes : -1;
}

int64_t opencl_save_memory(cl_mem memory, uint64_t offset, void *to, size_t bytes) {
    return move_content(memory, offset, to, bytes, 0);
}

int opencl_load_memory(cl_mem memory, uint64_t offset, const void *from, size_t bytes) {
    /* The vendor reads from there only. */
    return move_content(memory, offset, (void *)(uintptr_t)from, bytes, 1) != (int64_t)bytes;
}

/* ---- Programs ---------------------------------------------------------------------------------- */

/* A build that has failed is not made again, so that what it tells would be lost. */
int64_t opencl_save_program(cl_program program, uint64_t offset, void *to, size_t bytes) {
    (void)offset;
    (void)to;
    (void)bytes;
    cl_device_id devices[MOST_DEVICES];
    size_t size = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_DEVICES, 0, NULL, &size) != CL_SUCCESS || size > sizeof devices
        || clGetProgramInfo(program, CL_PROGRAM_DEVICES, size, devices, NULL) != CL_SUCCESS)
        return -1;
    for (size_t at = 0; at < size / sizeof *devices; at++) {
        cl_build_status status = CL_BUILD_NONE;
        if (clGetProgramBuildInfo(program, devices[at], CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL) != CL_SUCCESS
            || status == CL_BUILD_ERROR || status == CL_BUILD_IN_PROGRESS)
            return -1;
    }
    return 0;
}

int opencl_load_program(cl_program program, uint64_t offset, const void *from, size_t bytes) {
    (void)program;
    (void)offset;
    (void)from;
    return bytes != 0;
}

/* ---- Events ------------------------------------------------------------------------------------ */

static const cl_profiling_info event_times[OPENCL_EVENT_TIMES] = {CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT,
    CL_PROFILING_COMMAND_START, CL_PROFILING_COMMAND_END, CL_PROFILING_COMMAND_COMPLETE};

static int64_t save_remade(const struct opencl_event *image, void *to, size_t bytes) {
    if (bytes < sizeof *image)
        return -1;
    memcpy(to, image, sizeof *image);
    return sizeof *image;
}

/* True of a user event that is not set. Lanes stand, so that it stays so. */
static int is_unset(const struct opencl_event *image) {
    return image->is_users && image->status > CL_COMPLETE;
}

/* A complete event, or a user event, with what can be asked of it. */
int64_t opencl_save_event(cl_event event, void *to, size_t bytes) {
    const struct opencl_object *object = metadata(struct opencl_object, event);
    if (object && object->event.is_remade)
        return save_remade(&object->event, to, bytes);
    struct opencl_event image = {.is_remade = 1};
    cl_context context = NULL;
    cl_command_queue queue = NULL;
    if (clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof image.status, &image.status, NULL) != CL_SUCCESS
        || clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof image.type, &image.type, NULL) != CL_SUCCESS
        || clGetEventInfo(event, CL_EVENT_CONTEXT, sizeof context, &context, NULL) != CL_SUCCESS
        || clGetEventInfo(event, CL_EVENT_COMMAND_QUEUE, sizeof queue, &queue, NULL) != CL_SUCCESS)
        return -1;
    image.context = aviary_object_id(context);
    image.queue = queue ? aviary_object_id(queue) : 0;
    image.is_users = image.type == CL_COMMAND_USER;
    if (image.status > CL_COMPLETE && !is_unset(&image))
        return -1;
    for (size_t at = 0; at < OPENCL_EVENT_TIMES; at++)
        image.times_status[at] = opencl_event_time(event, event_times[at], sizeof image.times[at], &image.times[at], NULL);
    return image.context ? save_remade(&image, to, bytes) : -1;
}

/* Every command that an event may stand for has ended: an event of the application's own, which has ended too, takes its place. One of
 * the application's own that it has not set is made as it made it. */
cl_event opencl_make_event(uint64_t references, const void *from, size_t bytes) {
    struct opencl_event image;
    if (bytes != sizeof image)
        return NULL;
    memcpy(&image, from, sizeof image);
    cl_context context = aviary_object(image.context);
    cl_event event = context && (image.status <= CL_COMPLETE || is_unset(&image)) ? clCreateUserEvent(context, NULL) : NULL;
    if (event && !is_unset(&image) && clSetUserEventStatus(event, image.status) != CL_SUCCESS) {
        clReleaseEvent(event);
        return NULL;
    }
    for (uint64_t count = 1; event && count < references; count++)
        clRetainEvent(event);
    return event;
}

int opencl_load_event(cl_event event, const void *from, size_t bytes) {
    struct opencl_object *object = metadata(struct opencl_object, event);
    if (!object || bytes != sizeof object->event)
        return 1;
    struct opencl_event image;
    memcpy(&image, from, sizeof image);
    if (is_unset(&image)) {
        opencl_note_user_event(event);
        return 0;
    }
    image.is_remade = 1;
    object->event = image;
    return 0;
}

static cl_int answer(const void *found, size_t found_bytes, size_t size, void *value, size_t *size_ret) {
    if (value && size < found_bytes)
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, found, found_bytes);
    if (size_ret)
        *size_ret = found_bytes;
    return CL_SUCCESS;
}

/* A remade event tells of the command that it stands for; 0: it says nothing of that. */
int opencl_remade_info(cl_event event, cl_event_info name, size_t size, void *value, size_t *size_ret, cl_int *status) {
    const struct opencl_object *object = metadata(struct opencl_object, event);
    if (!object || !object->event.is_remade || object->event.is_users)
        return 0;
    const void *queue = aviary_object(object->event.queue);
    if (name == CL_EVENT_COMMAND_TYPE)
        *status = answer(&object->event.type, sizeof object->event.type, size, value, size_ret);
    else if (name == CL_EVENT_COMMAND_QUEUE)
        *status = answer(&queue, sizeof queue, size, value, size_ret);
    else
        return 0;
    return 1;
}

int opencl_remade_time(cl_event event, cl_profiling_info name, size_t size, void *value, size_t *size_ret, cl_int *status) {
    const struct opencl_object *object = metadata(struct opencl_object, event);
    if (!object || !object->event.is_remade)
        return 0;
    for (size_t at = 0; at < OPENCL_EVENT_TIMES; at++)
        if (event_times[at] == name) {
            *status = object->event.times_status[at];
            if (*status == CL_SUCCESS)
                *status = answer(&object->event.times[at], sizeof object->event.times[at], size, value, size_ret);
            return 1;
        }
    return 0;
}
