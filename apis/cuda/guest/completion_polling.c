/* Waits for work that is soon over - copies, kernels that were just launched -: the device itself says when it is. It
 * writes a word of shared memory behind it, in the stream's order, and the application's thread looks at the word. An answer
 * from the API server would come later by all that the server does when the driver comes back from waiting. What takes longer
 * than that should is waited for by asking, as anything else is: that thread then sleeps. So is work of kernels that may print:
 * their output is written while the driver waits, before the application goes on (printing.c). */
#include "guest/clock.h"
#include "guest/functions.h"
#include "guest/waiting.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>

/* A kernel that was launched so many cycles ago has ended by now or takes long: asking is quicker then. */
enum { POLLERS = 8, MAX_POLLED_BYTES = 16 << 20, PASSING = 32 << 10, JUST_NOW = 100000 };

/* A page with the word, and behind it room for what goes to memory that is not page-locked. */
struct poller {
    pthread_mutex_t lock;
    char *memory;
    /* Whose the memory is, and how many contexts had ended then: the device knows it no longer if that one was among them. */
    CUcontext context;
    uint64_t epoch;
    uint32_t expected;
};
static struct poller pollers[POLLERS] = {[0 ... POLLERS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* This thread has found nobody to watch, and waits for the answer instead. */
static __thread int waits_plainly;
/* When this thread has launched what it has not waited for since; 0: there is nothing. */
static __thread uint64_t launched;
/* True if there are streams that the default one does not wait for. */
static int independent_streams;

void cuda_note_independent_stream(void) {
    __atomic_store_n(&independent_streams, 1, __ATOMIC_RELEASE);
}

/* Memory was freed in the order of a stream: the next wait is the driver's, in which pools give back what they may not keep. */
static int freed_in_order;

void cuda_forget_pooled(CUdeviceptr pointer, cuuint64_t serial) {
    __atomic_store_n(&freed_in_order, 1, __ATOMIC_RELEASE);
    cuda_forget_freed(pointer, serial);
}

CUresult cuda_before_kernels(void) {
    launched = __builtin_ia32_rdtsc();
    cuda_flush_output();
    return cuda_send_variables();
}

/* After a call that has waited for what was launched, and in which the driver has written what kernels print. */
void cuda_settled(CUresult result) {
    if (result == CUDA_SUCCESS) {
        launched = 0;
        __atomic_store_n(&freed_in_order, 0, __ATOMIC_RELEASE);
        /* Elsewhere nothing is polled. */
        if (cuda_shares_memory())
            cuda_ask_whether_kernels_print();
    }
    cuda_waited(result);
}

static int is_ready(const struct poller *poller, CUcontext context, uint64_t epoch) {
    return poller->memory && poller->context == context && poller->epoch == epoch;
}

/* One of the current context, locked; NULL: all are busy, or there is no memory. */
static struct poller *enter_poller(void) {
    CUcontext context = cuda_current_context();
    uint64_t epoch = cuda_functions_epoch();
    struct poller *other = NULL;
    for (int i = 0; i < POLLERS; i++) {
        struct poller *poller = &pollers[i];
        if (pthread_mutex_trylock(&poller->lock) != 0)
            continue;
        if (is_ready(poller, context, epoch)) {
            if (other)
                pthread_mutex_unlock(&other->lock);
            return poller;
        }
        /* Rather one that was never used than another context's. */
        if (other && (poller->memory || !other->memory)) {
            pthread_mutex_unlock(&poller->lock);
            continue;
        }
        if (other)
            pthread_mutex_unlock(&other->lock);
        other = poller;
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

static void leave_poller(struct poller *poller) {
    pthread_mutex_unlock(&poller->lock);
}

/* True if nothing that was launched prints, and an error could be told. That this thread has waited since it launched something
 * would not do: other threads launch as well, and it may have waited for another stream. */
static int may_poll(CUstream stream) {
    return !waits_plainly && cuda_kernels_are_silent() && cuda_is_stream(stream) && cuda_has_context();
}

/* True if the stream reaches the word soon. The word is all that the device writes if it has no error; a caller that does not see
 * it asks, and is told of any error. */
static int is_soon_there(CUstream stream, uint32_t *word, uint32_t *expected, size_t bytes) {
    double until = 0, patience = 60e-6 + (double)bytes / 10e9;
    cuuint64_t before = cuda_calls();
    if (aviaryMark(stream, (CUdeviceptr)word, ++*expected) != CUDA_SUCCESS)
        return 0;
    for (unsigned int looks = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) != *expected; looks++) {
        __builtin_ia32_pause();
        if (looks % 64)
            continue;
        double now = cuda_seconds();
        if (!until)
            until = now + patience;
        else if (now > until)
            return 0;
    }
    launched = 0;
    /* The default stream waits for all others but the independent ones. */
    cuda_note_over(stream, !stream && !__atomic_load_n(&independent_streams, __ATOMIC_ACQUIRE), before);
    cuda_waited(CUDA_SUCCESS);
    return 1;
}

static CUresult ask(CUstream stream) {
    waits_plainly = 1;
    CUresult status = cuStreamSynchronize(stream);
    waits_plainly = 0;
    return status;
}

/* Waits for the stream, behind which so many bytes are to be copied. */
CUresult cuda_await_stream(CUstream stream, uint32_t *word, uint32_t *expected, size_t bytes) {
    return may_poll(stream) && is_soon_there(stream, word, expected, bytes) ? CUDA_SUCCESS : ask(stream);
}

static CUresult poll_stream(struct poller *poller, CUstream stream, size_t bytes) {
    return cuda_await_stream(stream, (uint32_t *)poller->memory, &poller->expected, bytes);
}

/* ---- Kernels ---------------------------------------------------------------------------------- */

int cuda_worth_polling_launches(CUstream stream) {
    return launched && __builtin_ia32_rdtsc() - launched < JUST_NOW && may_poll(stream) && cuda_shares_memory()
           && !__atomic_load_n(&freed_in_order, __ATOMIC_ACQUIRE);
}

/* The default stream waits for all others but the independent ones. */
int cuda_worth_polling_all(void) {
    return !__atomic_load_n(&independent_streams, __ATOMIC_ACQUIRE) && cuda_worth_polling_launches(NULL);
}

static int have_soon_ended(CUstream stream) {
    struct poller *poller = enter_poller();
    if (!poller)
        return 0;
    int ended = is_soon_there(stream, (uint32_t *)poller->memory, &poller->expected, 0);
    leave_poller(poller);
    return ended;
}

CUresult cuda_poll_launches(CUstream stream) {
    return have_soon_ended(stream) ? CUDA_SUCCESS : ask(stream);
}

CUresult cuda_poll_all(void) {
    if (have_soon_ended(NULL))
        return CUDA_SUCCESS;
    waits_plainly = 1;
    CUresult status = cuCtxSynchronize();
    waits_plainly = 0;
    return status;
}

/* ---- Copies ----------------------------------------------------------------------------------- */

/* True if a copy of page-locked memory is one of these. */
int cuda_worth_polling(const void *memory, size_t bytes, CUstream stream) {
    return bytes && bytes <= MAX_POLLED_BYTES && may_poll(stream) && cuda_shared(memory, bytes);
}

/* True if one into memory of the application's is. */
int cuda_worth_passing(const void *memory, size_t bytes, CUstream stream) {
    return bytes && bytes <= PASSING && may_poll(stream) && memory && !aviary_is_zerocopy(memory) && cuda_shares_memory();
}

CUresult cuda_poll_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct poller *poller = enter_poller();
    CUresult status;
    if (!poller) {
        waits_plainly = 1;
        status = cuMemcpyHtoD_v2(to, from, bytes);
        waits_plainly = 0;
        return status;
    }
    status = cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
    if (status == CUDA_SUCCESS)
        status = poll_stream(poller, stream, bytes);
    leave_poller(poller);
    return status;
}

CUresult cuda_poll_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct poller *poller = enter_poller();
    CUresult status;
    if (!poller) {
        waits_plainly = 1;
        status = cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
        waits_plainly = 0;
        return status == CUDA_SUCCESS ? cuStreamSynchronize(stream) : status;
    }
    int shared = cuda_shared(to, bytes);
    void *here = shared ? to : poller->memory + 4096;
    status = cuMemcpyDtoHAsync_v2(here, from, bytes, stream);
    if (status == CUDA_SUCCESS)
        status = poll_stream(poller, stream, bytes);
    if (status == CUDA_SUCCESS && !shared)
        memcpy(to, here, bytes);
    leave_poller(poller);
    return status;
}
