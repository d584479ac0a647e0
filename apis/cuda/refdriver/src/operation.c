#include "operation.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "graph.h"
#include "memory.h"
#include "module.h"
#include "stream.h"

bool operation_duplicate(struct operation *to, const struct operation *from)
{
    *to = *from;
    /* Graphs never hold snapshots: a node reads its source when it runs. */
    to->owned = NULL;
    switch (from->kind) {
    case OPERATION_KERNEL:
        to->launch.parameters = malloc(from->launch.size + 1);
        if (!to->launch.parameters)
            return false;
        memcpy(to->launch.parameters, from->launch.parameters, from->launch.size);
        object_hold(to->launch.function);
        return true;
    case OPERATION_RECORD:
    case OPERATION_WAIT:
        object_hold(to->event);
        return true;
    case OPERATION_GRAPH:
        to->graph = graph_clone(from->graph);
        return to->graph != NULL;
    case OPERATION_ALLOCATE:
        graph_memory_hold(to->memory);
        return true;
    case OPERATION_BATCH:
        to->batch.list = malloc(from->batch.count * sizeof(*to->batch.list));
        if (!to->batch.list)
            return false;
        memcpy(to->batch.list, from->batch.list, from->batch.count * sizeof(*to->batch.list));
        return true;
    case OPERATION_CONDITIONAL:
        return conditional_duplicate(to);
    default:
        return true;
    }
}

void operation_clear(struct operation *operation)
{
    free(operation->owned);
    switch (operation->kind) {
    case OPERATION_KERNEL:
        free(operation->launch.parameters);
        object_drop(operation->launch.function);
        break;
    case OPERATION_RECORD:
    case OPERATION_WAIT:
        object_drop(operation->event);
        break;
    case OPERATION_GRAPH:
        graph_end(operation->graph);
        break;
    case OPERATION_ALLOCATE:
        graph_memory_drop(operation->memory);
        break;
    case OPERATION_BATCH:
        free(operation->batch.list);
        break;
    case OPERATION_CONDITIONAL:
        conditional_clear(operation);
        break;
    case OPERATION_KEEP:
        user_references_end(operation->kept);
        free(operation->kept);
        break;
    default:
        break;
    }
}

void operation_note_printing(const struct operation *operation)
{
    if (operation->kind == OPERATION_KERNEL && operation->launch.function->code->prints)
        operation->launch.function->module->context->prints = true;
    if (operation->kind == OPERATION_GRAPH)
        for (size_t i = 0; i < operation->graph->count; i++)
            operation_note_printing(&operation->graph->nodes[i]->operation);
    for (unsigned body = 0; operation->kind == OPERATION_CONDITIONAL && body < operation->conditional.size; body++)
        for (size_t i = 0; i < operation->conditional.bodies[body]->count; i++)
            operation_note_printing(&operation->conditional.bodies[body]->nodes[i]->operation);
}

static CUresult write_value(const struct operation *operation);
static CUresult wait_value(const struct operation *operation);

static CUresult run_batch(const struct operation *operation)
{
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = 0; i < operation->batch.count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *one = &operation->batch.list[i];
        struct operation value = {.value = {one->writeValue.address, 0, 4, one->writeValue.flags}};

        if (one->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 || one->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            value.value.bytes = 8;
        value.value.value = value.value.bytes == 8 ? one->writeValue.value64 : one->writeValue.value;
        if (one->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || one->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64)
            result = write_value(&value);
        else if (one->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || one->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            result = wait_value(&value);
    }
    return result;
}

static CUresult write_value(const struct operation *operation)
{
    void *bytes = memory_at(operation->value.address, operation->value.bytes);

    if (!bytes)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (operation->value.bytes == 4)
        __atomic_store_n((uint32_t *)bytes, (uint32_t)operation->value.value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint64_t *)bytes, operation->value.value, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

static CUresult wait_value(const struct operation *operation)
{
    const struct timespec pause = {.tv_nsec = 20000};
    bool narrow = operation->value.bytes == 4;

    for (;;) {
        void *bytes = memory_at(operation->value.address, operation->value.bytes);
        uint64_t now, wanted = operation->value.value;
        bool met;

        if (!bytes)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        now = narrow ? __atomic_load_n((uint32_t *)bytes, __ATOMIC_SEQ_CST) : __atomic_load_n((uint64_t *)bytes, __ATOMIC_SEQ_CST);
        switch (operation->value.flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            met = narrow ? (int32_t)((uint32_t)now - (uint32_t)wanted) >= 0 : (int64_t)(now - wanted) >= 0;
            break;
        case CU_STREAM_WAIT_VALUE_EQ:
            met = now == wanted;
            break;
        case CU_STREAM_WAIT_VALUE_AND:
            met = (now & wanted) != 0;
            break;
        default:
            met = (~(now | wanted) & (narrow ? 0xffffffff : ~0ULL)) != 0;
        }
        if (met)
            return CUDA_SUCCESS;
        nanosleep(&pause, NULL);
    }
}

/* Of an event of this process alone the stream knows when to go on. */
static void wait_event(const struct operation *operation)
{
    while (operation->event->shared && !shared_event_reached(operation->event->shared, operation->record))
        shared_event_pause();
}

CUresult operation_run(struct operation *operation, CUcontext context)
{
    switch (operation->kind) {
    case OPERATION_COPY:
        return copy_run(&operation->copy);
    case OPERATION_FILL:
        return fill_run(&operation->fill);
    case OPERATION_KERNEL:
        return launch_run(&operation->launch);
    case OPERATION_HOST:
        operation->host.fn(operation->host.userData);
        return CUDA_SUCCESS;
    case OPERATION_CALLBACK:
        print_flush(context);
        operation->callback.function(operation->callback.stream, context->error, operation->callback.data);
        return CUDA_SUCCESS;
    case OPERATION_RECORD:
        event_stamp(operation->event);
        return CUDA_SUCCESS;
    case OPERATION_WAIT:
        wait_event(operation);
        return CUDA_SUCCESS;
    case OPERATION_FREE:
        pthread_mutex_lock(&driver_lock);
        if (!graph_memory_free(operation->freed))
            memory_release(operation->freed);
        pthread_mutex_unlock(&driver_lock);
        return CUDA_SUCCESS;
    case OPERATION_ALLOCATE:
        pthread_mutex_lock(&driver_lock);
        graph_memory_allocate(operation->memory);
        pthread_mutex_unlock(&driver_lock);
        return CUDA_SUCCESS;
    case OPERATION_BATCH:
        return run_batch(operation);
    case OPERATION_CONDITIONAL:
        return conditional_run(operation, context);
    case OPERATION_WRITE_VALUE:
        return write_value(operation);
    case OPERATION_WAIT_VALUE:
        return wait_value(operation);
    default:
        return CUDA_SUCCESS;
    }
}
