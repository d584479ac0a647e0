/* The contexts that are current in a thread, one inside the other. The server's thread has the innermost one. */
#include "guest/context.h"

enum { MOST_NESTED = 64 };

static __thread struct {
    CUcontext stack[MOST_NESTED];
    unsigned int depth;
} nested;

CUcontext cuda_current_context(void) {
    return nested.depth ? nested.stack[nested.depth - 1] : NULL;
}

int cuda_is_current(CUcontext context) {
    return context == cuda_current_context();
}

void cuda_note_current(CUcontext context) {
    if (!context)
        nested.depth -= nested.depth ? 1 : 0;
    else if (nested.depth)
        nested.stack[nested.depth - 1] = context;
    else
        nested.stack[nested.depth++] = context;
}

/* The server's thread gets what is now on top here. */
static CUresult follow(CUcontext before) {
    CUcontext now = cuda_current_context();
    if (now == before)
        return CUDA_SUCCESS;
    /* The stub compares with what is current here, so the change is made by it. */
    if (now) {
        nested.stack[nested.depth - 1] = before;
        CUresult status = cuCtxSetCurrent(now);
        nested.stack[nested.depth - 1] = now;
        return status;
    }
    nested.stack[nested.depth++] = before;
    return cuCtxSetCurrent(NULL);
}

CUresult cuda_push(CUcontext context) {
    CUcontext before = cuda_current_context();
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_context_of(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (nested.depth == MOST_NESTED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    nested.stack[nested.depth++] = context;
    return follow(before);
}

CUresult cuda_pop(CUcontext *context) {
    CUcontext before = cuda_current_context();
    if (!before)
        return CUDA_ERROR_INVALID_CONTEXT;
    nested.depth--;
    if (context)
        *context = before;
    return follow(before);
}

void cuda_put_current(CUcontext context) {
    CUcontext before = cuda_current_context();
    if (nested.depth == MOST_NESTED)
        return;
    nested.stack[nested.depth++] = context;
    follow(before);
}

void cuda_drop_current(CUcontext context) {
    if (cuda_current_context() != context)
        return;
    nested.depth--;
    follow(context);
}

int cuda_lacks_context(void) {
    return cuda_current_context() == NULL;
}

int cuda_current_ordinal(void) {
    const struct cuda_context *object = cuda_context_of(cuda_current_context());
    return object ? object->device : 0;
}
