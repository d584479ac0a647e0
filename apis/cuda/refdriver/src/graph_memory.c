/* Memory of graphs, and batches of operations on memory. The address of a graph's memory is its own from the making of the
 * node on; here the bytes are, too. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "memory.h"
#include "stream.h"

struct graph_memory {
    unsigned references;
    CUdeviceptr start;
    size_t size;
    CUdevice device;
    bool used, reserved;
    struct graph_memory *next;
};

static struct graph_memory *memories;
static struct {
    cuuint64_t used, used_high, reserved, reserved_high;
} counts[DEVICE_MAXIMUM];

static void count_used(struct graph_memory *memory, bool used)
{
    CUdevice device = memory->device;

    if (memory->used == used)
        return;
    memory->used = used;
    counts[device].used += used ? memory->size : -memory->size;
    if (used && !memory->reserved) {
        memory->reserved = true;
        counts[device].reserved += memory->size;
    }
    if (counts[device].used > counts[device].used_high)
        counts[device].used_high = counts[device].used;
    if (counts[device].reserved > counts[device].reserved_high)
        counts[device].reserved_high = counts[device].reserved;
}

static struct graph_memory *find(CUdeviceptr start)
{
    struct graph_memory *memory = memories;

    while (memory && memory->start != start)
        memory = memory->next;
    return memory;
}

void graph_memory_hold(struct graph_memory *memory) { memory->references++; }

void graph_memory_drop(struct graph_memory *memory)
{
    struct graph_memory **link = &memories;

    if (--memory->references)
        return;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    count_used(memory, false);
    if (memory->reserved)
        counts[memory->device].reserved -= memory->size;
    memory_release(memory->start);
    free(memory);
}

void graph_memory_allocate(struct graph_memory *memory) { count_used(memory, true); }

/* False: the address is no graph's. */
bool graph_memory_free(CUdeviceptr start)
{
    struct graph_memory *memory = find(start);
    void *bytes = memory ? memory_at(start, memory->size) : NULL;

    if (bytes)
        memset(bytes, 0, memory->size);
    if (memory)
        count_used(memory, false);
    return memory != NULL;
}

CUresult operation_from_allocation(struct operation *operation, CUdevice device, size_t size, CUcontext context)
{
    enum { ALIGNMENT = 512 };
    struct graph_memory *memory = calloc(1, sizeof(*memory));
    CUresult result = memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    if (result == CUDA_SUCCESS)
        result = size && device_valid(device) ? memory_allocate(&memory->start, size, ALIGNMENT, context, device, NULL)
                                              : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    memory->references = 1;
    memory->size = size;
    memory->device = device;
    memory->next = memories;
    memories = memory;
    *operation = (struct operation){.kind = OPERATION_ALLOCATE, .memory = memory};
    return CUDA_SUCCESS;
}

CUdeviceptr graph_memory_start(const struct graph_memory *memory) { return memory->start; }

CUresult operation_from_free(struct operation *operation, CUdeviceptr address)
{
    *operation = (struct operation){.kind = OPERATION_FREE, .freed = address};
    return find(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    const struct graph_memory *memory;

    if (!object_check(node, KIND_NODE) || node->operation.kind != OPERATION_ALLOCATE || !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    memory = node->operation.memory;
    *parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device}},
        .bytesize = memory->size,
        .dptr = memory->start,
    };
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
    if (!object_check(node, KIND_NODE) || node->operation.kind != OPERATION_FREE || !address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = node->operation.freed;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    for (struct graph_memory *memory = memories; memory; memory = memory->next)
        if (memory->device == device && memory->reserved && !memory->used) {
            memory->reserved = false;
            counts[device].reserved -= memory->size;
        }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || (unsigned)attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    *(cuuint64_t *)value = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT       ? counts[device].used
                           : attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH        ? counts[device].used_high
                           : attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? counts[device].reserved
                                                                                 : counts[device].reserved_high;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || *(cuuint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        counts[device].used_high = counts[device].used;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        counts[device].reserved_high = counts[device].reserved;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* --- batches --- */

static CUresult batch_check(const CUstreamBatchMemOpParams *list, unsigned count)
{
    if (!count || count > 256 || !list)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        unsigned bytes = 0;
        switch (list[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            bytes = 4;
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            bytes = 8;
            break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        case CU_STREAM_MEM_OP_BARRIER:
            continue;
        default:
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (list[i].writeValue.address % bytes || !memory_at(list[i].writeValue.address, bytes))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult operation_from_batch(struct operation *operation, const CUstreamBatchMemOpParams *list, unsigned count, unsigned flags)
{
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : batch_check(list, count);

    if (result != CUDA_SUCCESS)
        return result;
    *operation = (struct operation){.kind = OPERATION_BATCH, .batch = {calloc(count, sizeof(*list)), count}};
    if (!operation->batch.list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(operation->batch.list, list, count * sizeof(*list));
    return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp(CUstream handle, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags)
{
    struct operation operation;
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);

    if (result == CUDA_SUCCESS)
        result = operation_from_batch(&operation, list, count, flags);
    return result == CUDA_SUCCESS ? stream_submit(stream, &operation) : result;
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters)
{
    if (!object_check(node, KIND_NODE) || node->operation.kind != OPERATION_BATCH || !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    *parameters = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.count = node->operation.batch.count, .paramArray = node->operation.batch.list};
    cuCtxGetCurrent(&parameters->ctx);
    return CUDA_SUCCESS;
}
