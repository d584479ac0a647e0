/* Events that other processes of the tenant open. A process that knows the driver's own handle of one could open it, another tenant
 * too; so it stays among API servers: it lies in a file, and that is offered. */
#include "server.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static struct offered_event {
    CUevent event;
    struct cuda_offer offer;
    struct offered_event *next;
} *offered_events;
static pthread_mutex_t offered_events_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock. */
static struct offered_event **offered_event_at(CUevent event) {
    struct offered_event **link = &offered_events;
    while (*link && (*link)->event != event)
        link = &(*link)->next;
    return link;
}

/* Before the event is destroyed: another one may have its address at once. */
static void withdraw_event(CUevent event) {
    pthread_mutex_lock(&offered_events_lock);
    struct offered_event **link = offered_event_at(event), *found = *link;
    if (found) {
        *link = found->next;
        cuda_end_offer(&found->offer);
    }
    pthread_mutex_unlock(&offered_events_lock);
    free(found);
}

/* One of this address may have ended with its context, which nobody told. */
void cuda_new_event(CUevent event) {
    withdraw_event(event);
}

static CUresult destroy_event(CUevent event) {
    withdraw_event(event);
    return cuEventDestroy_v2(event);
}

void *cuda_destroy_event_function(void) {
    return (void *)destroy_event;
}

static CUresult offer_event(struct cuda_offer *offer, const CUipcEventHandle *handle) {
    int descriptor = cuda_new_sealed_file("aviary event", handle, sizeof *handle);
    return descriptor < 0 ? CUDA_ERROR_OUT_OF_MEMORY : cuda_offer_descriptor(offer, descriptor, CUDA_OFFERED_EVENT);
}

static CUresult share_event(CUevent event, aviary_shared_name *name) {
    CUipcEventHandle handle;
    CUresult status = name ? cuIpcGetEventHandle(&handle, event) : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        return status;
    pthread_mutex_lock(&offered_events_lock);
    struct offered_event *found = *offered_event_at(event), *made = found ? NULL : calloc(1, sizeof *made);
    if (!found)
        status = made ? offer_event(&made->offer, &handle) : CUDA_ERROR_OUT_OF_MEMORY;
    if (made && status == CUDA_SUCCESS) {
        made->event = event;
        made->next = offered_events;
        found = offered_events = made;
        made = NULL;
    }
    if (status == CUDA_SUCCESS)
        cuda_tell_offer_name(&found->offer, name);
    pthread_mutex_unlock(&offered_events_lock);
    free(made);
    return status;
}

void *cuda_share_event_function(void) {
    return (void *)share_event;
}

static CUresult open_event(CUevent *event, const aviary_shared_name *name) {
    CUipcEventHandle handle;
    uint64_t note = 0;
    if (!event || !name)
        return CUDA_ERROR_INVALID_VALUE;
    int descriptor = cuda_fetch_offer(name, &note);
    int known = descriptor >= 0 && note == CUDA_OFFERED_EVENT && cuda_read_sealed_file(descriptor, &handle, sizeof handle);
    if (descriptor >= 0)
        close(descriptor);
    return known ? cuIpcOpenEventHandle(event, handle) : CUDA_ERROR_MAP_FAILED;
}

void *cuda_open_event_function(void) {
    return (void *)open_event;
}
