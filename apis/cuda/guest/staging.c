/* Large copies of ordinary memory: through page-locked buffers that both sides share, in chunks, so that the copying of
 * one chunk and the device's transfer of another go on at the same time.
 *
 * No side sends a message when a chunk is done: the device itself writes a word of the shared memory, behind the
 * transfer and in the stream's order, which the application's thread looks at. */
#include "guest/clock.h"
#include "guest/functions.h"
#include "guest/waiting.h"
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* CHUNK_BYTES: what a buffer holds, and what is copied at a time where several threads copy. One alone has the device begin sooner,
 * and so has a copy that is over soon. */
enum { CHUNK_BYTES = 1 << 20, CHUNK_BYTES_SOON = 512 << 10, CHUNK_BYTES_ALONE = 256 << 10, ONE_CHUNK_BYTES = 128 << 10, SOON = 2 << 20 };
enum { CHUNKS = 12, POOLS = 4, WORTH = 32 << 10 };

/* ---- Buffers -------------------------------------------------------------------------------- */

/* The words come first in the memory, a cache line each, then the chunks. */
struct pool {
    pthread_mutex_t lock;
    char *memory;
    /* Whose the memory is, and how many contexts had ended then: the device knows it no longer if that one was among them. */
    CUcontext context;
    uint64_t epoch;
    /* The number that each chunk's word will show when the device is done with it. */
    uint32_t expected[CHUNKS];
};
static struct pool pools[POOLS] = {[0 ... POOLS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint32_t *word_of(struct pool *pool, int chunk) {
    return (uint32_t *)(pool->memory + 64 * chunk);
}

static char *chunk_of(struct pool *pool, int chunk) {
    return pool->memory + 4096 + (size_t)chunk * CHUNK_BYTES;
}

/* A pool of the current context, locked; NULL: there is none. */
static struct pool *enter_pool(void) {
    struct pool *pool = NULL;
    for (int i = 0; i < POOLS && !pool; i++)
        if (pthread_mutex_trylock(&pools[i].lock) == 0)
            pool = &pools[i];
    if (!pool) {
        pool = &pools[0];
        pthread_mutex_lock(&pool->lock);
    }
    CUcontext context = cuda_current_context();
    uint64_t epoch = cuda_functions_epoch();
    if (pool->memory && (pool->context != context || pool->epoch != epoch)) {
        cuMemFreeHost(pool->memory);
        pool->memory = NULL;
    }
    if (!pool->memory) {
        void *memory = NULL;
        if (cuMemHostAlloc(&memory, 4096 + (size_t)CHUNKS * CHUNK_BYTES, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) {
            pthread_mutex_unlock(&pool->lock);
            return NULL;
        }
        pool->memory = memory;
        pool->context = context;
        pool->epoch = epoch;
        memset(memory, 0, 4096);
        memset(pool->expected, 0, sizeof pool->expected);
    }
    return pool;
}

static void leave_pool(struct pool *pool) {
    pthread_mutex_unlock(&pool->lock);
}

/* Until the device is done with a chunk: looks for a moment, then naps; asks whether the stream is still well. */
static CUresult await(struct pool *pool, int chunk, CUstream stream) {
    const uint32_t *word = word_of(pool, chunk);
    double begin = 0, asked = 0;
    for (unsigned int looks = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) != pool->expected[chunk]; looks++) {
        if (looks < 4096) {
            __builtin_ia32_pause();
            continue;
        }
        double now = cuda_seconds();
        if (!begin)
            begin = asked = now;
        if (now - begin < 200e-6) {
            sched_yield();
            continue;
        }
        nanosleep(&(struct timespec){0, 50000}, NULL);
        if (now - asked > 0.05) {
            CUresult status = cuStreamQuery(stream);
            if (status != CUDA_ERROR_NOT_READY)
                return status;
            asked = now;
        }
    }
    return CUDA_SUCCESS;
}

/* The device's mark behind what it was last given for a chunk. */
static CUresult fence_chunk(struct pool *pool, int chunk, CUstream stream) {
    return aviaryMark(stream, (CUdeviceptr)word_of(pool, chunk), ++pool->expected[chunk]);
}

/* ---- Copies --------------------------------------------------------------------------------- */

int cuda_worth_staging(const void *memory, size_t bytes) {
    return bytes >= WORTH && memory && !aviary_is_zerocopy(memory) && !cuda_capturing() && cuda_has_context()
           && cuda_shares_memory();
}

static size_t piece_bytes(size_t bytes, int helped) {
    if (bytes <= ONE_CHUNK_BYTES)
        return bytes;
    return !helped ? CHUNK_BYTES_ALONE : bytes <= SOON ? CHUNK_BYTES_SOON : CHUNK_BYTES;
}

/* Piece after chunk on its way, each while the next is copied; `count` gets how many, `fenced` has each say when it has arrived. */
static CUresult send_chunks(struct pool *pool, CUdeviceptr to, const char *from, size_t bytes, CUstream stream, int fenced,
                            size_t *count) {
    CUresult status = CUDA_SUCCESS;
    size_t size = piece_bytes(bytes, cuda_gather_helpers(bytes)), n = 0;
    for (size_t at = 0; at < bytes && status == CUDA_SUCCESS; at += size, n++) {
        int chunk = (int)(n % CHUNKS);
        size_t part = bytes - at < size ? bytes - at : size;
        status = await(pool, chunk, stream);
        if (status != CUDA_SUCCESS)
            break;
        cuda_copy_together(chunk_of(pool, chunk), from + at, part, 1);
        status = cuMemcpyHtoDAsync_v2(to + at, chunk_of(pool, chunk), part, stream);
        if (status == CUDA_SUCCESS && fenced)
            status = fence_chunk(pool, chunk, stream);
    }
    cuda_dismiss_helpers();
    *count = n;
    return status;
}

static CUresult stage_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, int finish) {
    struct pool *pool = enter_pool();
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t n;
    CUresult status = send_chunks(pool, to, from, bytes, stream, 1, &n);
    if (finish && n && status == CUDA_SUCCESS)
        status = await(pool, (int)((n - 1) % CHUNKS), stream);
    leave_pool(pool);
    if (finish)
        cuda_waited(status);
    return status;
}

/* A copy whose chunks all have a buffer, until it is over: one word at the end says that all have arrived. */
static CUresult stage_in_at_once(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct pool *pool = enter_pool();
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t n;
    CUresult status = send_chunks(pool, to, from, bytes, stream, 0, &n);
    /* Also after an error: the chunks are somebody else's next. */
    CUresult ended = cuda_await_stream(stream, word_of(pool, 0), &pool->expected[0], bytes);
    leave_pool(pool);
    return status == CUDA_SUCCESS ? ended : status;
}

/* The application may change its memory when this returns; the device may still be at work. */
CUresult cuda_stage_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return stage_in(to, from, bytes, stream, 0);
}

CUresult cuda_stage_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    /* Earlier work of the stream may take long: this waits without looking. */
    CUresult status = cuStreamSynchronize(stream);
    struct pool *pool = status == CUDA_SUCCESS ? enter_pool() : NULL;
    if (!pool)
        return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
    size_t asked = 0, got = 0;
    cuda_gather_helpers(bytes);
    for (size_t n = 0; got < bytes && status == CUDA_SUCCESS; n++) {
        /* All chunks but one are under way while one is copied. */
        for (size_t ahead = asked / CHUNK_BYTES; asked < bytes && ahead < n + CHUNKS && status == CUDA_SUCCESS; ahead++) {
            int chunk = (int)(ahead % CHUNKS);
            size_t part = bytes - asked < CHUNK_BYTES ? bytes - asked : CHUNK_BYTES;
            if (ahead < CHUNKS)
                status = await(pool, chunk, stream);
            if (status == CUDA_SUCCESS)
                status = cuMemcpyDtoHAsync_v2(chunk_of(pool, chunk), from + asked, part, stream);
            if (status == CUDA_SUCCESS)
                status = fence_chunk(pool, chunk, stream);
            asked += part;
        }
        if (status == CUDA_SUCCESS)
            status = await(pool, (int)(n % CHUNKS), stream);
        if (status != CUDA_SUCCESS)
            break;
        size_t part = bytes - got < CHUNK_BYTES ? bytes - got : CHUNK_BYTES;
        cuda_copy_together((char *)to + got, chunk_of(pool, (int)(n % CHUNKS)), part, 0);
        got += part;
    }
    cuda_dismiss_helpers();
    leave_pool(pool);
    cuda_waited(status);
    return status;
}

/* A copy that waits for what the stream has to do, as the driver's does for such memory, and for its own end: work in a
 * stream that does not wait for this one may follow. */
CUresult cuda_stage_in_after(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    if (bytes <= (size_t)CHUNKS * CHUNK_BYTES_ALONE)
        return stage_in_at_once(to, from, bytes, stream);
    CUresult status = cuStreamSynchronize(stream);
    return status == CUDA_SUCCESS ? stage_in(to, from, bytes, stream, 1) : status;
}

/* ---- Over a network ------------------------------------------------------------------------- */

/* What is copied at a time. In: the device takes one piece while the next is on its way, and a long copy takes no more of the arena than
 * the runtime holds for calls that are not executed. Out: the API server divides it further; this is what it takes of the arena. */
enum { TRAVELLING_IN = 4 << 20, TRAVELLING_OUT = 64 << 20 };

static int travels(const void *memory) {
    return memory && !cuda_capturing() && cuda_has_context() && !cuda_shares_memory();
}

int cuda_worth_sending(const void *memory, size_t bytes) {
    return bytes >= 2 * TRAVELLING_IN && travels(memory);
}

/* `finish`: it is over when this returns. */
CUresult cuda_send_pieces(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, int finish) {
    CUresult status = CUDA_SUCCESS;
    for (size_t at = 0; at < bytes && status == CUDA_SUCCESS; at += TRAVELLING_IN) {
        size_t part = bytes - at < TRAVELLING_IN ? bytes - at : TRAVELLING_IN;
        status = cuMemcpyHtoDAsync_v2(to + at, (const char *)from + at, part, stream);
    }
    return finish && status == CUDA_SUCCESS ? cuStreamSynchronize(stream) : status;
}

int cuda_worth_fetching(const void *memory, size_t bytes) {
    return bytes > TRAVELLING_OUT && travels(memory);
}

/* After what is in the stream, as all copies into memory that is not page-locked. */
CUresult cuda_fetch_pieces(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    CUresult status = CUDA_SUCCESS;
    for (size_t at = 0; at < bytes && status == CUDA_SUCCESS; at += TRAVELLING_OUT) {
        size_t part = bytes - at < TRAVELLING_OUT ? bytes - at : TRAVELLING_OUT;
        status = cuMemcpyDtoHAsync_v2((char *)to + at, from + at, part, stream);
    }
    cuda_waited(status);
    return status;
}
