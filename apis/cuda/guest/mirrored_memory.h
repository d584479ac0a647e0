/* Memory that both sides have a copy of. */
#ifndef AVIARY_CUDA_MIRRORED_MEMORY_H
#define AVIARY_CUDA_MIRRORED_MEMORY_H
#include "cuda_types.h"
#include "layout.h"
#include <aviary/guest.h>
#include <pthread.h>

struct managed_variable {
    CUdeviceptr base;
    size_t bytes;
    /* The module or the library that it ends with; page-locked memory ends by itself. */
    const void *owner;
    /* Contents of both sides when they were equal last. */
    unsigned char *twin;
    unsigned char *fetched;
    struct managed_variable *next;
};

/* All of them, with the lock. */
extern struct managed_variable *cuda_variables;
extern pthread_mutex_t cuda_variables_lock;

struct managed_variable **cuda_find_variable(CUdeviceptr base);
void cuda_add_variable(struct managed_variable *variable);
/* Asked without the lock, by callers that need no more. */
int cuda_has_variables(void);
CUresult cuda_send_changes(struct managed_variable *variable);
void cuda_fetch_changes(struct managed_variable *variable);

#endif
