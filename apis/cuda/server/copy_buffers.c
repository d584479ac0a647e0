/* Page-locked buffers through which device memory is copied, each with a stream. To make them takes longer than to copy a gigabyte, so
 * they stay for the next time, until the runtime wants their memory back. They end with their context. */
#include "unchanged.h"
#include <aviary/server.h>
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_copy_buffer *kept;

static void drop(struct cuda_copy_buffer *buffer) {
    if (buffer->stream)
        cuStreamDestroy_v2(buffer->stream);
    if (buffer->memory)
        cuMemFreeHost(buffer->memory);
    free(buffer);
}

/* One of this context that was kept; NULL: there is none. */
static struct cuda_copy_buffer *take_kept(CUcontext context, uint64_t serial) {
    struct cuda_copy_buffer *found = NULL;
    pthread_mutex_lock(&kept_lock);
    struct cuda_copy_buffer **at = &kept;
    while (*at && ((*at)->context != context || (*at)->serial != serial))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&kept_lock);
    return found;
}

struct cuda_copy_buffer *cuda_take_copy_buffer(CUcontext context) {
    uint64_t serial = cuda_context_serial(context);
    struct cuda_copy_buffer *buffer = take_kept(context, serial);
    if (buffer)
        return buffer;
    buffer = calloc(1, sizeof *buffer);
    void *memory = NULL;
    int made = buffer && cuMemHostAlloc(&memory, CUDA_PIECE_BYTES, 0) == CUDA_SUCCESS
               && cuStreamCreate(&buffer->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
    if (buffer) {
        buffer->memory = memory;
        buffer->context = context;
        buffer->serial = serial;
    }
    if (buffer && !made) {
        drop(buffer);
        buffer = NULL;
    }
    return buffer;
}

void cuda_put_copy_buffer(struct cuda_copy_buffer *buffer) {
    if (!buffer)
        return;
    pthread_mutex_lock(&kept_lock);
    buffer->next = kept;
    kept = buffer;
    pthread_mutex_unlock(&kept_lock);
}

/* What ended with its context has no memory any more. */
static int is_there(const struct cuda_copy_buffer *buffer) {
    return buffer->serial && cuda_context_serial(buffer->context) == buffer->serial;
}

void cuda_tell_copy_buffers(void) {
    size_t bytes = 0;
    pthread_mutex_lock(&kept_lock);
    for (const struct cuda_copy_buffer *buffer = kept; buffer; buffer = buffer->next)
        bytes += is_there(buffer) ? CUDA_PIECE_BYTES : 0;
    pthread_mutex_unlock(&kept_lock);
    aviary_keeps_buffers(bytes, cuda_drop_copy_buffers);
}

void cuda_drop_copy_buffers(void) {
    pthread_mutex_lock(&kept_lock);
    struct cuda_copy_buffer *dropped = kept;
    kept = NULL;
    pthread_mutex_unlock(&kept_lock);
    while (dropped) {
        struct cuda_copy_buffer *buffer = dropped;
        dropped = buffer->next;
        if (is_there(buffer) && cuda_enter_context(buffer->context)) {
            drop(buffer);
            cuda_leave_context();
        } else {
            free(buffer);
        }
    }
    aviary_keeps_buffers(0, NULL);
}
