/* Addresses that an application reserves for memory that it maps itself. They come out of a window that the server has
 * reserved already, beside its own placement: drivers do not grant every wish (an H200's granted none above
 * 0x180000000000), and an address of the driver's choice could be in use in the application's process. */
#include "moving.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define GRANULE ((size_t)2 << 20)

struct reservation {
    CUdeviceptr base;
    size_t bytes;
    struct reservation *next;
};

/* Ascending by base. */
static struct reservation *reservations;
static pthread_mutex_t reservations_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock: the reservation that holds all of that. */
static struct reservation *find_reservation(CUdeviceptr base, size_t bytes) {
    for (struct reservation *r = reservations; r; r = r->next)
        if (base >= r->base && base - r->base < r->bytes)
            return bytes <= r->bytes - (base - r->base) ? r : NULL;
    return NULL;
}

/* Memory may be mapped where the application has reserved, and nowhere else. */
int cuda_may_map(CUdeviceptr base, size_t bytes) {
    pthread_mutex_lock(&reservations_lock);
    int may = find_reservation(base, bytes) != NULL;
    pthread_mutex_unlock(&reservations_lock);
    return may;
}

/* The first gap at or after `from`, between the reservations; 0: there is none. */
static CUdeviceptr gap(CUdeviceptr from, CUdeviceptr end, size_t bytes, size_t alignment, struct reservation ***link) {
    CUdeviceptr at = (from + alignment - 1) / alignment * alignment;
    for (*link = &reservations; **link; *link = &(**link)->next) {
        struct reservation *taken = **link;
        if (taken->base + taken->bytes <= at)
            continue;
        if (taken->base >= at && taken->base - at >= bytes)
            break;
        at = (taken->base + taken->bytes + alignment - 1) / alignment * alignment;
    }
    return at < end && bytes <= end - at ? at : 0;
}

CUresult cuda_reserve_for_application(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                      unsigned long long flags) {
    CUdeviceptr window = 0;
    size_t window_bytes = 0;
    if (!pointer || !bytes || bytes % GRANULE || (alignment & (alignment - 1)) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuda_application_window(&window, &window_bytes);
    if (status != CUDA_SUCCESS)
        return status;
    if (bytes > window_bytes || alignment > window_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (alignment < GRANULE)
        alignment = GRANULE;
    struct reservation *made = calloc(1, sizeof *made), **link = NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&reservations_lock);
    CUdeviceptr end = window + window_bytes, at = 0;
    /* A wish that cannot be met is no error. */
    if (wanted >= window && wanted < end && wanted % alignment == 0 && gap(wanted, end, bytes, alignment, &link) == wanted)
        at = wanted;
    if (!at)
        at = gap(window, end, bytes, alignment, &link);
    if (at) {
        *made = (struct reservation){at, bytes, *link};
        *link = made;
        *pointer = at;
        made = NULL;
    }
    pthread_mutex_unlock(&reservations_lock);
    free(made);
    return at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void *cuda_reserve_function(void) {
    return (void *)cuda_reserve_for_application;
}

CUresult cuda_end_reservation(CUdeviceptr pointer, size_t bytes) {
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    if (cuda_has_mappings(pointer, bytes))
        return status;
    pthread_mutex_lock(&reservations_lock);
    for (struct reservation **link = &reservations; *link; link = &(*link)->next)
        if ((*link)->base == pointer && (*link)->bytes == bytes) {
            struct reservation *ended = *link;
            *link = ended->next;
            free(ended);
            status = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&reservations_lock);
    return status;
}

void *cuda_end_reservation_function(void) {
    return (void *)cuda_end_reservation;
}

/* ---- Moving ---------------------------------------------------------------------------------- */

int cuda_list_reserved(struct cuda_reserved **entries, size_t *count) {
    size_t room = 0;
    pthread_mutex_lock(&reservations_lock);
    for (const struct reservation *r = reservations; r; r = r->next)
        room++;
    *count = 0;
    *entries = calloc(room ? room : 1, sizeof **entries);
    for (const struct reservation *r = reservations; r && *entries; r = r->next)
        (*entries)[(*count)++] = (struct cuda_reserved){r->base, r->bytes};
    pthread_mutex_unlock(&reservations_lock);
    return *entries != NULL;
}

/* True if a range lies in the part of a device's addresses that is for applications. */
static int is_applications(CUdeviceptr base, size_t bytes, int *device) {
    CUdeviceptr offset = base - CUDA_PLACES, in_device = offset % CUDA_PLACE_BYTES;
    *device = (int)(offset / CUDA_PLACE_BYTES);
    return base >= CUDA_PLACES && base < CUDA_PLACES_END && in_device >= CUDA_PLACED_BYTES && bytes && bytes % GRANULE == 0
           && base % GRANULE == 0 && bytes <= CUDA_PLACE_BYTES - in_device;
}

static CUresult reserve_there(CUdeviceptr base, size_t bytes) {
    struct reservation *made, **link = NULL;
    int device = 0;
    if (!is_applications(base, bytes, &device))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = cuda_reserve_device(device);
    if (status != CUDA_SUCCESS)
        return status;
    made = calloc(1, sizeof *made);
    pthread_mutex_lock(&reservations_lock);
    int free_there = made && gap(base, base + bytes, bytes, GRANULE, &link) == base;
    if (free_there) {
        *made = (struct reservation){base, bytes, *link};
        *link = made;
        made = NULL;
    }
    pthread_mutex_unlock(&reservations_lock);
    free(made);
    return free_there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_reserve_again(const struct cuda_reserved *entries, size_t count) {
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++)
        status = reserve_there(entries[i].base, entries[i].bytes);
    return status;
}
