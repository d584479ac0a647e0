/* Memory of the driver's pools, which places it itself: its charges. */
#include "server.h"
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t pooled_lock = PTHREAD_MUTEX_INITIALIZER;

/* Memory that was allocated in a stream's order, and its size; the pools place it themselves. */
static struct pooled {
    CUdeviceptr base;
    size_t bytes;
    uint64_t ordinal;
    struct pooled *next;
} *pooled[1024];

static struct pooled **bucket(CUdeviceptr pointer) {
    return &pooled[(pointer >> 9) % 1024];
}

/* Charge of an allocation in a stream's order. A captured one adds nothing: the executable graph does. */
uint64_t cuda_stream_bytes(size_t bytes, CUstream stream) {
    if (cuda_may_pass(stream))
        return bytes;
    cuda_note_graph_allocation();
    return 0;
}

void cuda_keep_pooled(CUdeviceptr pointer, size_t bytes, uint64_t ordinal) {
    struct pooled *entry = malloc(sizeof *entry);
    if (!entry)
        return;
    pthread_mutex_lock(&pooled_lock);
    *entry = (struct pooled){pointer, bytes, ordinal, *bucket(pointer)};
    *bucket(pointer) = entry;
    pthread_mutex_unlock(&pooled_lock);
}

/* Where it lies; before it is forgotten. */
uint64_t cuda_ordinal_of_pooled(CUdeviceptr pointer) {
    pthread_mutex_lock(&pooled_lock);
    const struct pooled *entry = *bucket(pointer);
    while (entry && entry->base != pointer)
        entry = entry->next;
    uint64_t ordinal = entry ? entry->ordinal : 0;
    pthread_mutex_unlock(&pooled_lock);
    return ordinal;
}

/* Forgets it; how much it was. */
uint64_t cuda_pooled_bytes(CUdeviceptr pointer) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&pooled_lock);
    for (struct pooled **link = bucket(pointer); *link; link = &(*link)->next)
        if ((*link)->base == pointer) {
            struct pooled *entry = *link;
            bytes = entry->bytes;
            *link = entry->next;
            free(entry);
            break;
        }
    pthread_mutex_unlock(&pooled_lock);
    return bytes;
}
