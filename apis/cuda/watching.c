/* Copies that somebody waits for, and that are soon over: the device itself says when. It writes a word of shared memory
 * behind the copy, in the stream's order, and the application's thread looks at the word. An answer from the API server
 * would come later by all that the server does when the driver comes back from waiting. What takes longer than such a copy
 * should is waited for by asking, as anything else is: that thread then sleeps. So is a copy for which kernels have to end
 * first: besides, what they print is written while the driver waits, before the application goes on. */
#include "guest.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { WATCHERS = 8, MOST_WATCHED = 16 << 20, PASSING = 32 << 10 };

/* A page with the word, and behind it room for what goes to memory that is not page-locked. */
struct watcher {
    pthread_mutex_t lock;
    char *memory;
    /* Whose the memory is, and how many contexts had ended then: the device knows it no longer if that one was among them. */
    CUcontext context;
    uint64_t epoch;
    uint32_t expected;
};
static struct watcher watchers[WATCHERS] = {[0 ... WATCHERS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* This thread has found nobody to watch, and waits for the answer instead; it has launched something and not waited since. */
static __thread int waits_plainly, has_launched;

CUresult cuda_before_kernels(void) {
    has_launched = 1;
    return cuda_send_variables();
}

/* After a call that has waited for what was launched, and in which the driver has written what kernels print. */
void cuda_settled(CUresult result) {
    if (result == CUDA_SUCCESS)
        has_launched = 0;
    cuda_waited(result);
}

static int is_ready(const struct watcher *watcher, CUcontext context, uint64_t epoch) {
    return watcher->memory && watcher->context == context && watcher->epoch == epoch;
}

/* One of the current context, locked; NULL: all are busy, or there is no memory. */
static struct watcher *enter_watcher(void) {
    CUcontext context = cuda_current_context();
    uint64_t epoch = cuda_functions_epoch();
    struct watcher *other = NULL;
    for (int i = 0; i < WATCHERS; i++) {
        struct watcher *watcher = &watchers[i];
        if (pthread_mutex_trylock(&watcher->lock) != 0)
            continue;
        if (is_ready(watcher, context, epoch)) {
            if (other)
                pthread_mutex_unlock(&other->lock);
            return watcher;
        }
        /* Rather one that was never used than another context's. */
        if (other && (watcher->memory || !other->memory)) {
            pthread_mutex_unlock(&watcher->lock);
            continue;
        }
        if (other)
            pthread_mutex_unlock(&other->lock);
        other = watcher;
    }
    if (!other)
        return NULL;
    if (other->memory)
        cuMemFreeHost(other->memory);
    void *memory = NULL;
    if (cuMemHostAlloc(&memory, 4096 + PASSING, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
        memory = NULL;
    other->memory = memory;
    other->context = context;
    other->epoch = epoch;
    other->expected = 0;
    if (memory) {
        memset(memory, 0, 4096);
        return other;
    }
    pthread_mutex_unlock(&other->lock);
    return NULL;
}

static void leave_watcher(struct watcher *watcher) {
    pthread_mutex_unlock(&watcher->lock);
}

/* Until the stream has come so far. The word is all that the device writes when it is well: any error is the stream's. */
static CUresult watch(struct watcher *watcher, CUstream stream, size_t bytes) {
    const uint32_t *word = (const uint32_t *)watcher->memory;
    CUresult status = cuStreamWriteValue32_v2(stream, (CUdeviceptr)word, ++watcher->expected, 0);
    double until = 0, patience = 60e-6 + (double)bytes / 10e9;
    if (status != CUDA_SUCCESS)
        return status;
    for (unsigned int looks = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) != watcher->expected; looks++) {
        __builtin_ia32_pause();
        if (looks % 64)
            continue;
        double now = seconds();
        if (!until)
            until = now + patience;
        else if (now > until)
            return cuStreamSynchronize(stream);
    }
    cuda_waited(CUDA_SUCCESS);
    return CUDA_SUCCESS;
}

static int may_watch(size_t bytes, CUstream stream) {
    return bytes && !waits_plainly && !has_launched && cuda_is_stream(stream) && cuda_has_context();
}

/* ---- Copies ----------------------------------------------------------------------------------- */

/* Whether a copy of page-locked memory is one of these. */
int cuda_worth_watching(const void *memory, size_t bytes, CUstream stream) {
    return bytes <= MOST_WATCHED && may_watch(bytes, stream) && cuda_shared(memory, bytes);
}

/* Whether one into memory of the application's is. */
int cuda_worth_passing(const void *memory, size_t bytes, CUstream stream) {
    return bytes <= PASSING && may_watch(bytes, stream) && memory && !aviary_is_zerocopy(memory) && cuda_shares_memory();
}

CUresult cuda_watch_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct watcher *watcher = enter_watcher();
    CUresult status;
    if (!watcher) {
        waits_plainly = 1;
        status = cuMemcpyHtoD_v2(to, from, bytes);
        waits_plainly = 0;
        return status;
    }
    status = cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
    if (status == CUDA_SUCCESS)
        status = watch(watcher, stream, bytes);
    leave_watcher(watcher);
    return status;
}

CUresult cuda_watch_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct watcher *watcher = enter_watcher();
    CUresult status;
    if (!watcher) {
        waits_plainly = 1;
        status = cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
        waits_plainly = 0;
        return status == CUDA_SUCCESS ? cuStreamSynchronize(stream) : status;
    }
    int shared = cuda_shared(to, bytes);
    void *here = shared ? to : watcher->memory + 4096;
    status = cuMemcpyDtoHAsync_v2(here, from, bytes, stream);
    if (status == CUDA_SUCCESS)
        status = watch(watcher, stream, bytes);
    if (status == CUDA_SUCCESS && !shared)
        memcpy(to, here, bytes);
    leave_watcher(watcher);
    return status;
}
