/* Device memory to memory of the host and back, at the speed of the bus: each of several threads has two page-locked buffers, of which
 * one is copied by the device while the processor copies the other. To page-lock the host's memory itself takes far longer. */
#include "unchanged.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MOST_THREADS = 16, BUFFERS = 2, BUFFER_BYTES = CUDA_PIECE_BYTES };
/* Less than that is not worth one more thread: its buffers take longer to make than one thread takes to copy it, and they are an eighth
 * of it. */
#define BYTES_OF_THREAD ((uint64_t)64 << 20)

/* All threads take the next piece of this. */
struct job {
    const struct cuda_moved_part *parts;
    size_t part_count;
    char *host;
    int writes;
    /* By piece: it is passed over. NULL: none is. */
    const unsigned char *same;
    /* NULL: all parts are there. */
    cuda_part_comes comes;
    void *data;
    pthread_mutex_t lock;
    /* The next piece: of this part, from this offset on; `at`: of the host's memory. */
    size_t part, number;
    uint64_t offset, at;
    CUresult status;
};

struct piece {
    CUcontext context;
    CUdeviceptr pointer;
    char *host;
    size_t bytes;
};

/* One of a thread's buffers, and what it carries. */
struct buffer {
    struct cuda_copy_buffer *own;
    /* No bytes: it is free. */
    struct piece piece;
};

/* 0: there is none any more, or another thread has failed. */
static int next_piece(struct job *job, struct piece *piece) {
    int found = 0;
    pthread_mutex_lock(&job->lock);
    while (!found && job->status == CUDA_SUCCESS && job->part < job->part_count) {
        const struct cuda_moved_part *part = &job->parts[job->part];
        if (job->comes && !job->offset && !part->is_there && (job->status = job->comes(job->data, job->part)) != CUDA_SUCCESS)
            break;
        uint64_t left = part->bytes - job->offset;
        size_t bytes = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        if (part->is_there)
            bytes = (size_t)left;
        else if (bytes && !(job->same && job->same[job->number]))
            *piece = (struct piece){part->context, part->pointer + job->offset, job->host + job->at, bytes}, found = 1;
        job->number++;
        job->at += bytes;
        job->offset += bytes;
        if (job->offset == part->bytes)
            job->part++, job->offset = 0;
    }
    pthread_mutex_unlock(&job->lock);
    return found;
}

static void fail(struct job *job, CUresult status) {
    pthread_mutex_lock(&job->lock);
    if (job->status == CUDA_SUCCESS)
        job->status = status;
    pthread_mutex_unlock(&job->lock);
}

/* Past the processor's caches, which this would only empty. */
static void copy_past_caches(char *to, const char *from, size_t bytes) {
#if defined(__SSE2__)
    int aligned = ((uintptr_t)to | (uintptr_t)from) % 16 == 0;
    size_t whole = aligned ? bytes - bytes % 16 : 0;
    for (size_t i = 0; i < whole; i += 16)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_load_si128((const __m128i *)(const void *)(from + i)));
    _mm_sfence();
    memcpy(to + whole, from + whole, bytes - whole);
#else
    memcpy(to, from, bytes);
#endif
}

static CUresult begin(struct buffer *buffer, int writes) {
    const struct piece *piece = &buffer->piece;
    if (!writes)
        return cuMemcpyDtoHAsync_v2(buffer->own->memory, piece->pointer, piece->bytes, buffer->own->stream);
    memcpy(buffer->own->memory, piece->host, piece->bytes);
    return cuMemcpyHtoDAsync_v2(piece->pointer, buffer->own->memory, piece->bytes, buffer->own->stream);
}

static CUresult finish(struct buffer *buffer, int writes) {
    CUresult status = buffer->piece.bytes ? cuStreamSynchronize(buffer->own->stream) : CUDA_SUCCESS;
    if (status == CUDA_SUCCESS && !writes && buffer->piece.bytes)
        copy_past_caches(buffer->piece.host, buffer->own->memory, buffer->piece.bytes);
    buffer->piece.bytes = 0;
    return status;
}

static CUresult copy_directly(const struct piece *piece, int writes) {
    return writes ? cuMemcpyHtoD_v2(piece->pointer, piece->host, piece->bytes) : cuMemcpyDtoH_v2(piece->host, piece->pointer, piece->bytes);
}

static void put_buffers(struct buffer *buffers) {
    for (int i = 0; i < BUFFERS; i++)
        cuda_put_copy_buffer(buffers[i].own);
    memset(buffers, 0, BUFFERS * sizeof *buffers);
}

/* In the current context; 0: there is no page-locked memory any more. */
static int take_buffers(struct buffer *buffers, CUcontext context) {
    int taken = 1;
    for (int i = 0; taken && i < BUFFERS; i++)
        taken = (buffers[i].own = cuda_take_copy_buffer(context)) != NULL;
    if (!taken)
        put_buffers(buffers);
    return taken;
}

/* All buffers of a thread that is about to leave its context. */
static CUresult finish_all(struct buffer *buffers, int writes) {
    CUresult status = CUDA_SUCCESS;
    for (int i = 0; i < BUFFERS; i++) {
        CUresult own = finish(&buffers[i], writes);
        status = status == CUDA_SUCCESS ? own : status;
    }
    return status;
}

static void *copy_pieces(void *data) {
    struct job *job = data;
    struct buffer buffers[BUFFERS] = {{0}};
    struct piece piece;
    CUcontext context = NULL;
    CUresult status = CUDA_SUCCESS;
    int has_buffers = 0;
    for (int turn = 0; status == CUDA_SUCCESS && next_piece(job, &piece); turn = (turn + 1) % BUFFERS) {
        if (piece.context != context) {
            status = finish_all(buffers, job->writes);
            put_buffers(buffers);
            if (context)
                cuda_leave_context();
            context = cuda_enter_context(piece.context) ? piece.context : NULL;
            if (!context)
                status = CUDA_ERROR_INVALID_CONTEXT;
            has_buffers = context && take_buffers(buffers, context);
        }
        if (status == CUDA_SUCCESS && !has_buffers) {
            status = copy_directly(&piece, job->writes);
        } else if (status == CUDA_SUCCESS) {
            status = finish(&buffers[turn], job->writes);
            buffers[turn].piece = piece;
            status = status == CUDA_SUCCESS ? begin(&buffers[turn], job->writes) : status;
        }
    }
    CUresult last = finish_all(buffers, job->writes);
    put_buffers(buffers);
    if (context)
        cuda_leave_context();
    if (status != CUDA_SUCCESS || last != CUDA_SUCCESS)
        fail(job, status != CUDA_SUCCESS ? status : last);
    return NULL;
}

uint64_t cuda_bytes_of_parts(const struct cuda_moved_part *parts, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += parts[i].bytes;
    return bytes;
}

static CUresult copy(struct job job) {
    pthread_t threads[MOST_THREADS];
    uint64_t worth = cuda_bytes_of_parts(job.parts, job.part_count) / BYTES_OF_THREAD;
    long most = sysconf(_SC_NPROCESSORS_ONLN), started = 0;
    most = most < 1 ? 1 : most > MOST_THREADS ? MOST_THREADS : most;
    most = (uint64_t)most > worth ? (long)worth : most;
    /* This one is a thread, too, and may be the only one. */
    while (started < most - 1 && pthread_create(&threads[started], NULL, copy_pieces, &job) == 0)
        started++;
    copy_pieces(&job);
    for (long i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return job.status;
}

CUresult cuda_copy_in(const struct cuda_moved_part *parts, size_t count, const char *host, cuda_part_comes comes, void *data) {
    /* The driver reads from there only. */
    char *from = (char *)(uintptr_t)host;
    return copy((struct job){.parts = parts, .part_count = count, .host = from, .writes = 1, .comes = comes, .data = data,
                             .lock = PTHREAD_MUTEX_INITIALIZER});
}

CUresult cuda_copy_out(const struct cuda_moved_part *parts, size_t count, char *host, const unsigned char *same) {
    return copy((struct job){.parts = parts, .part_count = count, .host = host, .same = same, .lock = PTHREAD_MUTEX_INITIALIZER});
}
