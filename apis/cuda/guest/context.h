/* Contexts of a thread, what begins and ends with one, and errors that stay with it. The lowest layer. */
#ifndef AVIARY_CUDA_CONTEXT_H
#define AVIARY_CUDA_CONTEXT_H
#include "guest/objects.h"

/* current_context.c */
CUcontext cuda_current_context(void);
int cuda_current_ordinal(void);
/* No context is current, with an error that stays or without. */
int cuda_lacks_context(void);
/* A context that was made becomes the innermost one of the thread; one that has ended is it no longer. */
void cuda_put_current(CUcontext context);
void cuda_drop_current(CUcontext context);

/* sticky_error.c */
void cuda_note_result(CUresult result);
int cuda_no_sticky_error(void);

/* capture.c */
int cuda_capturing(void);
int cuda_is_stream(CUstream stream);

/* context.c */
int cuda_is_initialized(void);
int cuda_has_context(void);
int cuda_launches_block(void);
int cuda_has_other_contexts(void);

#endif
