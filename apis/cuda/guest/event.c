/* Events that are known to be complete: how often each was recorded, and up to which record it was seen complete. A
 * question counts only if no record was under way when it was asked: otherwise the answer may be about an older one.
 * Of those that other processes may record as well nothing is known, nor of those that graphs record. */
#include "guest/waiting.h"

/* Before there is such an event nothing else is looked at. */
static int any_shared, any_in_graphs;

int cuda_is_shared_event(CUevent event) {
    const struct cuda_event *object = __atomic_load_n(&any_shared, __ATOMIC_ACQUIRE) ? cuda_event_of(event) : NULL;
    return object && object->shared;
}

void cuda_note_shared_event(CUevent event) {
    struct cuda_event *object = cuda_event_of(event);
    if (!object)
        return;
    object->shared = 1;
    __atomic_store_n(&any_shared, 1, __ATOMIC_RELEASE);
}

/* A graph records it or waits for it: from now on a launch of a graph is perhaps a record or a wait. If it is one for other
 * processes, too, it waits for its answer as these do. */
void cuda_note_event_of_graph(CUevent event) {
    struct cuda_event *object = cuda_event_of(event);
    if (object)
        __atomic_store_n(&object->of_graph, 1, __ATOMIC_RELEASE);
    if (cuda_is_shared_event(event))
        __atomic_store_n(&any_in_graphs, 1, __ATOMIC_RELEASE);
}

int cuda_graphs_share_events(void) {
    return __atomic_load_n(&any_in_graphs, __ATOMIC_ACQUIRE);
}

/* After a call that waited for an event: that of another process says nothing of what was launched here. */
void cuda_event_settled(CUevent event, CUresult result) {
    if (cuda_is_shared_event(event)) {
        cuda_waited(result);
        return;
    }
    cuda_settled(result);
    /* So that events which are known to be complete need not be asked for. */
    if (result == CUDA_SUCCESS)
        cuda_ask_whether_kernels_print();
}

static uint64_t loaded(const uint64_t *counter) {
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

cuuint64_t cuda_begin_record(CUevent event) {
    struct cuda_event *object = cuda_event_of(event);
    if (!object)
        return 0;
    __atomic_add_fetch(&object->under_way, 1, __ATOMIC_ACQ_REL);
    return __atomic_add_fetch(&object->recorded, 1, __ATOMIC_ACQ_REL);
}

void cuda_end_record(CUevent event) {
    struct cuda_event *object = cuda_event_of(event);
    if (object)
        __atomic_sub_fetch(&object->under_way, 1, __ATOMIC_ACQ_REL);
}

/* How many records the server will have seen before a question asked now; 0: nobody knows. */
cuuint64_t cuda_records(CUevent event) {
    const struct cuda_event *object = cuda_event_of(event);
    if (!object || object->shared)
        return 0;
    uint64_t records = loaded(&object->recorded);
    return loaded(&object->under_way) == 0 && loaded(&object->recorded) == records ? records : 0;
}

int cuda_completed(CUevent event) {
    const struct cuda_event *object = cuda_event_of(event);
    uint64_t completed = object && !__atomic_load_n(&object->of_graph, __ATOMIC_ACQUIRE) ? loaded(&object->completed) : 0;
    return completed && completed == loaded(&object->recorded) && !cuda_capturing() && cuda_no_sticky_error()
           && aviary_connected();
}

/* It was complete when it had been recorded so often. */
void cuda_note_completed(CUevent event, cuuint64_t records) {
    struct cuda_event *object = cuda_event_of(event);
    uint64_t known = object ? loaded(&object->completed) : UINT64_MAX;
    while (known < records
           && !__atomic_compare_exchange_n(&object->completed, &known, records, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}
