/* Events that the application has destroyed, for the next ones of their kind: making and destroying one is no message then. Only
 * events that are known to be complete, or were never recorded, are kept: the driver answers for them as for new ones. It
 * would still tell the time of their last record, so it is not asked for that of one which was not recorded again. */
#include "guest/functions.h"
#include "guest/waiting.h"
#include <pthread.h>

enum { MOST_KEPT = 64 };
/* What becomes of an event that is destroyed. The application has those that are in use; of a kept one it has a dead handle. */
enum { ENDS, IN_USE, KEPT };

static struct kept_event {
    CUevent event;
    CUcontext context;
    unsigned int flags;
    uint64_t epoch;
} kept[MOST_KEPT];
static unsigned int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int may_keep(void) {
    return cuda_is_initialized() && cuda_has_context() && !cuda_capturing() && aviary_connected();
}

static int changes(struct cuda_event *object, int from, int to) {
    return __atomic_compare_exchange_n(&object->keeping, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* After it was made in the current context. */
void cuda_note_event(CUevent event, unsigned int flags) {
    struct cuda_event *object = cuda_event_of(event);
    if (flags & CU_EVENT_INTERPROCESS)
        cuda_note_shared_event(event);
    if (!object || flags & CU_EVENT_INTERPROCESS)
        return;
    object->flags = flags;
    object->context = cuda_current_context();
    changes(object, ENDS, IN_USE);
}

static int fits(const struct kept_event *one, unsigned int flags) {
    return one->flags == flags && one->context == cuda_current_context() && one->epoch == cuda_functions_epoch();
}

static CUevent find_kept(unsigned int flags) {
    CUevent found = NULL;
    if (pthread_mutex_trylock(&lock) != 0)
        return NULL;
    for (unsigned int i = count; i-- > 0 && !found;)
        if (fits(&kept[i], flags)) {
            found = kept[i].event;
            kept[i] = kept[count - 1];
            __atomic_store_n(&count, count - 1, __ATOMIC_RELEASE);
        }
    pthread_mutex_unlock(&lock);
    return found;
}

/* One that is like a new one. False: the driver makes one. */
int cuda_take_kept_event(CUevent *event, unsigned int flags) {
    CUevent found = event && __atomic_load_n(&count, __ATOMIC_ACQUIRE) && may_keep() ? find_kept(flags) : NULL;
    struct cuda_event *object = cuda_event_of(found);
    if (!object)
        return 0;
    *event = found;
    return changes(object, KEPT, IN_USE);
}

static int is_like_new(const struct cuda_event *object) {
    uint64_t recorded = __atomic_load_n(&object->recorded, __ATOMIC_ACQUIRE);
    return !object->shared && !__atomic_load_n(&object->of_graph, __ATOMIC_ACQUIRE)
           && !__atomic_load_n(&object->under_way, __ATOMIC_ACQUIRE)
           && recorded == __atomic_load_n(&object->completed, __ATOMIC_ACQUIRE);
}

/* Keeps an event that the application destroys. False: the driver destroys it. */
int cuda_keep_event(CUevent event) {
    struct cuda_event *object = cuda_event_of(event);
    if (!object || !may_keep() || !is_like_new(object) || !changes(object, IN_USE, KEPT))
        return 0;
    __atomic_store_n(&object->was_kept, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&object->recorded, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&object->completed, 0, __ATOMIC_RELEASE);
    int keeps = pthread_mutex_trylock(&lock) == 0;
    if (keeps) {
        keeps = count < MOST_KEPT;
        if (keeps) {
            kept[count] = (struct kept_event){event, object->context, object->flags, cuda_functions_epoch()};
            __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&lock);
    }
    return keeps || !changes(object, KEPT, ENDS);
}

/* True of a kept event: the application has destroyed it. */
int cuda_is_kept_event(CUevent event) {
    const struct cuda_event *object = __atomic_load_n(&count, __ATOMIC_ACQUIRE) ? cuda_event_of(event) : NULL;
    return object && __atomic_load_n(&object->keeping, __ATOMIC_ACQUIRE) == KEPT;
}

/* True of an event that was kept, or is, and has no record of its own. */
int cuda_has_no_time(CUevent event) {
    const struct cuda_event *object = cuda_event_of(event);
    return object && __atomic_load_n(&object->was_kept, __ATOMIC_ACQUIRE) && !__atomic_load_n(&object->recorded, __ATOMIC_ACQUIRE)
           && !__atomic_load_n(&object->of_graph, __ATOMIC_ACQUIRE);
}

/* Before a context ends: the kept events end first, as the application's calls would have had it. Always 0. */
int cuda_end_kept_events(void) {
    struct kept_event ended[MOST_KEPT];
    unsigned int number = 0;
    if (!cuda_is_initialized() || !aviary_connected())
        return 0;
    pthread_mutex_lock(&lock);
    for (; number < count; number++)
        ended[number] = kept[number];
    __atomic_store_n(&count, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    for (unsigned int i = 0; i < number; i++) {
        struct cuda_event *object = cuda_event_of(ended[i].event);
        if (object && changes(object, KEPT, ENDS))
            cuEventDestroy_v2(ended[i].event);
    }
    return 0;
}
