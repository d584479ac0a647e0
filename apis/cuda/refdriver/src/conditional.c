/* Nodes that depend on a condition. A condition is a word of device memory, and its handle is the word's address, so that
 * kernels of tests can set it. (NVIDIA's kernels call a function for that.) */
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "memory.h"
#include "stream.h"

struct condition {
    CUgraphConditionalHandle handle;
    unsigned initial;
    bool assigned; /* gets its initial value whenever the graph is launched */
    struct condition *next;
};
static struct condition *conditions;

static const struct condition *find(CUgraphConditionalHandle handle)
{
    const struct condition *condition = conditions;

    while (condition && condition->handle != handle)
        condition = condition->next;
    return condition;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context, unsigned initial,
                                        unsigned flags)
{
    struct condition *condition;
    CUdeviceptr word;
    CUcontext current;
    CUresult result = context_need(&current);

    if (result == CUDA_SUCCESS && (!handle || !object_check(graph, KIND_GRAPH) || flags > CU_GRAPH_COND_ASSIGN_DEFAULT))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && context)
        current = context;
    if (result == CUDA_SUCCESS)
        result = memory_allocate(&word, sizeof(unsigned), 256, current, current->device, NULL);
    condition = result == CUDA_SUCCESS ? calloc(1, sizeof(*condition)) : NULL;
    if (!condition)
        return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
    *condition = (struct condition){word, initial, flags & CU_GRAPH_COND_ASSIGN_DEFAULT, conditions};
    conditions = condition;
    *handle = word;
    return CUDA_SUCCESS;
}

CUresult operation_from_conditional(struct operation *operation, CUDA_CONDITIONAL_NODE_PARAMS *parameters)
{
    bool fits = parameters->type == CU_GRAPH_COND_TYPE_WHILE  ? parameters->size == 1
                : parameters->type == CU_GRAPH_COND_TYPE_IF   ? parameters->size == 1 || parameters->size == 2
                                                              : parameters->type == CU_GRAPH_COND_TYPE_SWITCH && parameters->size;
    CUgraph *bodies = fits && find(parameters->handle) ? calloc(parameters->size, sizeof(*bodies)) : NULL;

    if (!bodies)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < parameters->size; i++)
        bodies[i] = graph_create();
    *operation = (struct operation){
        .kind = OPERATION_CONDITIONAL,
        .conditional = {parameters->handle, parameters->type, parameters->size, bodies},
    };
    parameters->phGraph_out = bodies;
    return CUDA_SUCCESS;
}

bool conditional_duplicate(struct operation *to)
{
    CUgraph *bodies = calloc(to->conditional.size, sizeof(*bodies));

    for (unsigned i = 0; bodies && i < to->conditional.size; i++)
        bodies[i] = graph_clone(to->conditional.bodies[i]);
    to->conditional.bodies = bodies;
    return bodies != NULL;
}

void conditional_clear(struct operation *operation)
{
    for (unsigned i = 0; i < operation->conditional.size; i++)
        if (operation->conditional.bodies[i])
            graph_end(operation->conditional.bodies[i]);
    free(operation->conditional.bodies);
}

/* Work before the launch: the word's initial value. */
CUresult conditional_prepare(const struct operation *operation, CUstream stream)
{
    const struct condition *condition = find(operation->conditional.handle);
    struct operation fill = {.kind = OPERATION_FILL};

    if (!condition || !condition->assigned)
        return CUDA_SUCCESS;
    fill.fill = (CUDA_MEMSET_NODE_PARAMS){.dst = condition->handle, .value = condition->initial, .elementSize = 4, .width = 1, .height = 1};
    return stream_enqueue(stream, &fill);
}

static CUresult run_body(CUgraph graph, CUcontext context)
{
    CUgraphNode *sorted = graph_sorted(graph);
    CUresult result = sorted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        result = sorted[i]->operation.kind == OPERATION_GRAPH ? run_body(sorted[i]->operation.graph, context)
                                                              : operation_run(&sorted[i]->operation, context);
    free(sorted);
    return result;
}

CUresult conditional_run(const struct operation *operation, CUcontext context)
{
    const unsigned *word = memory_at(operation->conditional.handle, sizeof(*word));
    CUgraph *bodies = operation->conditional.bodies;
    unsigned size = operation->conditional.size, value;
    CUresult result = CUDA_SUCCESS;

    if (!word)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    value = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    switch (operation->conditional.type) {
    case CU_GRAPH_COND_TYPE_IF:
        if (value)
            return run_body(bodies[0], context);
        return size == 2 ? run_body(bodies[1], context) : CUDA_SUCCESS;
    case CU_GRAPH_COND_TYPE_WHILE:
        while (result == CUDA_SUCCESS && __atomic_load_n(word, __ATOMIC_SEQ_CST))
            result = run_body(bodies[0], context);
        return result;
    default:
        return value < size ? run_body(bodies[value], context) : CUDA_SUCCESS;
    }
}
