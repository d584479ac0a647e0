/* Interrupts as descriptors. */
#define _GNU_SOURCE
#include "objects.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct event {
    struct object object;
    pthread_mutex_t lock;
    /* Read like an eventfd; -1 until it is registered for the first time. */
    int descriptor;
    /* The program's handle for which it is registered, which may be closed: to be compared only. */
    fpga_handle handle;
};

static void close_event(struct object *object)
{
    struct event *event = (struct event *)object;

    if (event->descriptor >= 0)
        close(event->descriptor);
    pthread_mutex_destroy(&event->lock);
}

EXPORTED fpga_result fpgaCreateEventHandle(fpga_event_handle *event_handle)
{
    struct event *event = event_handle ? object_new(EVENT, sizeof *event, close_event) : NULL;

    if (!event)
        return event_handle ? FPGA_NO_MEMORY : FPGA_INVALID_PARAM;
    event->descriptor = -1;
    pthread_mutex_init(&event->lock, NULL);
    object_show(event);
    *event_handle = event;
    return FPGA_OK;
}

EXPORTED fpga_result fpgaDestroyEventHandle(fpga_event_handle *event_handle)
{
    if (!event_handle || !object_end(*event_handle, EVENT))
        return FPGA_INVALID_PARAM;
    *event_handle = NULL;
    return FPGA_OK;
}

EXPORTED fpga_result fpgaGetOSObjectFromEventHandle(const fpga_event_handle eh, int *fd)
{
    struct event *event = fd ? object_hold(eh, EVENT) : NULL;
    int descriptor;

    if (!event)
        return FPGA_INVALID_PARAM;
    pthread_mutex_lock(&event->lock);
    descriptor = event->descriptor;
    pthread_mutex_unlock(&event->lock);
    object_release(event);
    if (descriptor < 0)
        return FPGA_INVALID_PARAM;
    *fd = descriptor;
    return FPGA_OK;
}

/* Puts a descriptor in the place of the event's, so that its number stays. */
static void replace(struct event *event, int descriptor)
{
    if (event->descriptor < 0) {
        event->descriptor = descriptor;
    } else {
        dup3(descriptor, event->descriptor, O_CLOEXEC);
        close(descriptor);
    }
}

/* With the event's lock. An earlier registration ends. */
static fpga_result subscribe(struct event *event, struct handle *handle, uint32_t vector)
{
    int descriptor, error;

    error = aviary_fpga_event(handle->card, vector, &descriptor);
    if (error)
        return result_of(error, "fpgaRegisterEvent");
    replace(event, descriptor);
    event->handle = handle;
    return FPGA_OK;
}

EXPORTED fpga_result fpgaRegisterEvent(fpga_handle handle, fpga_event_type event_type, fpga_event_handle event_handle,
                                       uint32_t flags)
{
    struct handle *held;
    struct event *event;
    fpga_result result = FPGA_INVALID_PARAM;

    if (event_type == FPGA_EVENT_ERROR || event_type == FPGA_EVENT_POWER_THERMAL)
        return FPGA_NOT_SUPPORTED;
    if (event_type != FPGA_EVENT_INTERRUPT || flags >= VECTORS)
        return FPGA_INVALID_PARAM;
    held = object_hold(handle, HANDLE);
    event = held ? object_hold(event_handle, EVENT) : NULL;
    if (event) {
        pthread_mutex_lock(&event->lock);
        result = subscribe(event, held, flags);
        pthread_mutex_unlock(&event->lock);
        object_release(event);
    }
    if (held)
        object_release(held);
    return result;
}

EXPORTED fpga_result fpgaUnregisterEvent(fpga_handle handle, fpga_event_type event_type, fpga_event_handle event_handle)
{
    struct event *event;
    bool registered;

    if (event_type != FPGA_EVENT_INTERRUPT)
        return FPGA_NOT_SUPPORTED;
    event = handle ? object_hold(event_handle, EVENT) : NULL;
    if (!event)
        return FPGA_INVALID_PARAM;
    pthread_mutex_lock(&event->lock);
    registered = event->handle == handle;
    if (registered) {
        /* One that is never readable. */
        int silent = eventfd(0, EFD_CLOEXEC);
        if (silent >= 0)
            replace(event, silent);
        event->handle = NULL;
    }
    pthread_mutex_unlock(&event->lock);
    object_release(event);
    return registered ? FPGA_OK : FPGA_INVALID_PARAM;
}
