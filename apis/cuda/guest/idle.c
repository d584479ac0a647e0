/* Work that is known to be over: this thread has waited for it, and no thread has made a call since. Programs wait and ask twice
 * as a rule (a loop that times its steps, an allocator that looks at its streams), and the second time needs no message. Where
 * kernels may print the driver is asked all the same: it writes their output in these calls. */
#include "guest/waiting.h"

/* What this thread has waited for last. */
static __thread struct {
    /* aviary_calls() when it was over; 0: nothing is known. */
    cuuint64_t calls;
    CUcontext context;
    CUstream stream;
    /* All streams of the context. */
    int whole;
} over;

/* Whether anything is sent between two times. */
cuuint64_t cuda_calls(void) {
    return aviary_calls();
}

/* After a wait before which aviary_calls() was `before`; the wait was one call. `whole`: for all streams. */
void cuda_note_over(CUstream stream, int whole, cuuint64_t before) {
    cuuint64_t calls = aviary_calls();
    over.calls = before && calls == before + 1 && cuda_kernels_are_silent() ? calls : 0;
    over.context = cuda_current_context();
    over.stream = stream;
    over.whole = whole;
}

static int nothing_since(void) {
    return over.calls && over.calls == aviary_calls() && over.context == cuda_current_context() && cuda_has_context()
           && !cuda_capturing() && cuda_kernels_are_silent() && cuda_is_initialized();
}

/* True if the stream has nothing to do. Of all streams of a context only those are known that need no handle. */
int cuda_stream_is_over(CUstream stream) {
    int any = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    return (over.whole ? any : over.stream == stream) && nothing_since();
}

/* True if the current context has nothing to do. */
int cuda_context_is_over(void) {
    return over.whole && nothing_since();
}
