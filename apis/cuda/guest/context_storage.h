/* Values that libraries store for a context, by key, in their own process (the table CTX_LOCAL_STORAGE). */
#ifndef AVIARY_CUDA_CONTEXT_STORAGE_H
#define AVIARY_CUDA_CONTEXT_STORAGE_H

#include <cuda.h>

typedef void (*context_storage_destructor)(CUcontext context, void *key, void *value);

/* Without a context, each means the current one. Putting what is there already replaces it. */
CUresult context_storage_put(CUcontext context, void *key, void *value, context_storage_destructor destructor);
CUresult context_storage_delete(CUcontext context, void *key);
CUresult context_storage_get(void **value, CUcontext context, void *key);

/* Ends all that is stored for a context, calling destructors without any lock held. */
void context_storage_end(CUcontext context);

#endif
