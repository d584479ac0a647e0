/* Large copies of ordinary memory: through page-locked buffers that both sides share, in pieces, so that the copying of
 * one piece and the device's transfer of another go on at the same time.
 *
 * Nobody sends a message when a piece is done: the device itself writes a word of the shared memory, behind the
 * transfer and in the stream's order, which the application's thread looks at. */
#include "guest.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, PIECES = 12, POOLS = 4, WORTH = 32 << 10, SHARE = 256 << 10, HELPERS = 3 };

/* ---- Copying with several threads ----------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    int started;
    /* What is to be copied, in shares; whoever comes takes the next. */
    char *to;
    const char *from;
    size_t bytes;
    size_t next;
    size_t done;
    /* Counts up with each piece of work, so that a helper that comes late takes no share of another. */
    unsigned int number;
} copying = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

/* Takes shares until there are none. With the lock on entry and exit. */
static void copy_shares(unsigned int number) {
    while (copying.number == number && copying.next < copying.bytes) {
        size_t at = copying.next, bytes = copying.bytes - at;
        bytes = bytes < SHARE ? bytes : SHARE;
        copying.next += bytes;
        char *to = copying.to + at;
        const char *from = copying.from + at;
        pthread_mutex_unlock(&copying.lock);
        memcpy(to, from, bytes);
        pthread_mutex_lock(&copying.lock);
        copying.done += bytes;
    }
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&copying.lock);
    for (;;) {
        copy_shares(copying.number);
        pthread_cond_wait(&copying.work, &copying.lock);
    }
    return NULL;
}

/* Helpers block every signal, so that none of the application's is handled on them. */
static void start_helpers(void) {
    sigset_t all, before;
    copying.started = 1;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2 * HELPERS)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < HELPERS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, NULL) == 0)
            pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* One caller at a time has helpers; others copy by themselves. */
static void copy(char *to, const char *from, size_t bytes) {
    static int busy;
    if (bytes < 2 * SHARE || __atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE)) {
        memcpy(to, from, bytes);
        return;
    }
    pthread_mutex_lock(&copying.lock);
    if (!copying.started)
        start_helpers();
    copying.to = to;
    copying.from = from;
    copying.bytes = bytes;
    copying.next = copying.done = 0;
    copying.number++;
    pthread_cond_broadcast(&copying.work);
    copy_shares(copying.number);
    while (copying.done < bytes) {
        pthread_mutex_unlock(&copying.lock);
        sched_yield();
        pthread_mutex_lock(&copying.lock);
    }
    copying.bytes = 0;
    pthread_mutex_unlock(&copying.lock);
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
}

/* ---- Buffers -------------------------------------------------------------------------------- */

/* The words come first in the memory, a cache line each, then the pieces. */
struct pool {
    pthread_mutex_t lock;
    char *memory;
    /* Whose the memory is, and how many contexts had ended then: the device knows it no longer if that one was among them. */
    CUcontext context;
    uint64_t epoch;
    /* The number that each piece's word will show when the device is done with it. */
    uint32_t expected[PIECES];
};
static struct pool pools[POOLS] = {[0 ... POOLS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint32_t *word_of(struct pool *pool, int piece) {
    return (uint32_t *)(pool->memory + 64 * piece);
}

static char *piece_of(struct pool *pool, int piece) {
    return pool->memory + 4096 + (size_t)piece * PIECE;
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
        if (cuMemHostAlloc(&memory, 4096 + (size_t)PIECES * PIECE, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) {
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

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Until the device is done with a piece: looks for a moment, then naps; asks whether the stream is still well. */
static CUresult await(struct pool *pool, int piece, CUstream stream) {
    const uint32_t *word = word_of(pool, piece);
    double begin = 0, asked = 0;
    for (unsigned int looks = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) != pool->expected[piece]; looks++) {
        if (looks < 4096) {
            __builtin_ia32_pause();
            continue;
        }
        double now = seconds();
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

/* The device's mark behind what it was last given for a piece. */
static CUresult mark_piece(struct pool *pool, int piece, CUstream stream) {
    return aviaryMark(stream, (CUdeviceptr)word_of(pool, piece), ++pool->expected[piece]);
}

/* ---- Copies --------------------------------------------------------------------------------- */

int cuda_worth_staging(const void *memory, size_t bytes) {
    return bytes >= WORTH && memory && !aviary_is_zerocopy(memory) && !cuda_capturing() && cuda_has_context()
           && cuda_shares_memory();
}

static CUresult stage_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, int finish) {
    struct pool *pool = enter_pool();
    CUresult status = CUDA_SUCCESS;
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t n = 0;
    for (size_t at = 0; at < bytes && status == CUDA_SUCCESS; n++) {
        int piece = (int)(n % PIECES);
        size_t part = bytes - at < PIECE ? bytes - at : PIECE;
        status = await(pool, piece, stream);
        if (status != CUDA_SUCCESS)
            break;
        copy(piece_of(pool, piece), (const char *)from + at, part);
        status = cuMemcpyHtoDAsync_v2(to + at, piece_of(pool, piece), part, stream);
        if (status == CUDA_SUCCESS)
            status = mark_piece(pool, piece, stream);
        at += part;
    }
    if (finish && n && status == CUDA_SUCCESS)
        status = await(pool, (int)((n - 1) % PIECES), stream);
    leave_pool(pool);
    if (finish)
        cuda_waited(status);
    return status;
}

/* A copy that fits into a pool, until it is over. The first piece is on its way while the second is copied; one word
 * at the end says that all have arrived. */
static CUresult stage_in_at_once(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct pool *pool = enter_pool();
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t smallest = 32 << 10;
    size_t size = (bytes / 4 + smallest - 1) / smallest * smallest;
    size = size < smallest ? smallest : size > PIECE ? PIECE : size;
    CUresult status = CUDA_SUCCESS;
    int piece = 0;
    for (size_t at = 0; at < bytes && status == CUDA_SUCCESS; at += size, piece++) {
        size_t part = bytes - at < size ? bytes - at : size;
        status = await(pool, piece, stream);
        if (status != CUDA_SUCCESS)
            break;
        copy(piece_of(pool, piece), (const char *)from + at, part);
        status = cuMemcpyHtoDAsync_v2(to + at, piece_of(pool, piece), part, stream);
    }
    /* Also after an error: the pieces are somebody else's next. */
    CUresult ended = cuda_await_stream(stream, word_of(pool, 0), &pool->expected[0], bytes);
    leave_pool(pool);
    return status == CUDA_SUCCESS ? ended : status;
}

/* The application may change its memory when this returns; the device may still be at work. */
CUresult cuda_stage_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return stage_in(to, from, bytes, stream, 0);
}

CUresult cuda_stage_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    /* What the stream has to do first may take long: this waits without looking. */
    CUresult status = cuStreamSynchronize(stream);
    struct pool *pool = status == CUDA_SUCCESS ? enter_pool() : NULL;
    if (!pool)
        return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
    size_t asked = 0, got = 0;
    for (size_t n = 0; got < bytes && status == CUDA_SUCCESS; n++) {
        /* All pieces but one are under way while one is copied. */
        for (size_t ahead = asked / PIECE; asked < bytes && ahead < n + PIECES && status == CUDA_SUCCESS; ahead++) {
            int piece = (int)(ahead % PIECES);
            size_t part = bytes - asked < PIECE ? bytes - asked : PIECE;
            if (ahead < PIECES)
                status = await(pool, piece, stream);
            if (status == CUDA_SUCCESS)
                status = cuMemcpyDtoHAsync_v2(piece_of(pool, piece), from + asked, part, stream);
            if (status == CUDA_SUCCESS)
                status = mark_piece(pool, piece, stream);
            asked += part;
        }
        if (status == CUDA_SUCCESS)
            status = await(pool, (int)(n % PIECES), stream);
        if (status != CUDA_SUCCESS)
            break;
        size_t part = bytes - got < PIECE ? bytes - got : PIECE;
        copy((char *)to + got, piece_of(pool, (int)(n % PIECES)), part);
        got += part;
    }
    leave_pool(pool);
    cuda_waited(status);
    return status;
}

/* A copy that waits for what the stream has to do, as the driver's does for such memory, and for its own end: work in a
 * stream that does not wait for this one may follow. */
CUresult cuda_stage_in_after(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    if (bytes <= (size_t)4 * PIECE)
        return stage_in_at_once(to, from, bytes, stream);
    CUresult status = cuStreamSynchronize(stream);
    return status == CUDA_SUCCESS ? stage_in(to, from, bytes, stream, 1) : status;
}
