/* Objects of the application that live as long as a graph does, or anything that was made of it. */
#include <stdlib.h>

#include "graph.h"

struct CUuserObject_st {
    struct object object;
    void *pointer;
    CUhostFn destroy;
    size_t references;
};

/* As in a real driver a thread of its own calls the application's function. */
static void *call_destroy(void *argument)
{
    struct CUuserObject_st ended = *(struct CUuserObject_st *)argument;

    free(argument);
    ended.destroy(ended.pointer);
    return NULL;
}

static void end(CUuserObject object)
{
    struct CUuserObject_st *ended = malloc(sizeof(*ended));
    pthread_attr_t attributes;
    pthread_t thread;

    if (ended) {
        *ended = *object;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        if (pthread_create(&thread, &attributes, call_destroy, ended))
            free(ended);
        pthread_attr_destroy(&attributes);
    }
    object_end(object);
}

static void release(CUuserObject object, size_t count)
{
    object->references -= count;
    if (!object->references)
        end(object);
}

bool user_references_add(struct user_references *references, CUuserObject object, size_t count)
{
    struct user_reference *grown;

    for (size_t i = 0; i < references->count; i++)
        if (references->list[i].object == object) {
            references->list[i].count += count;
            return true;
        }
    grown = realloc(references->list, (references->count + 1) * sizeof(*grown));
    if (!grown)
        return false;
    references->list = grown;
    grown[references->count++] = (struct user_reference){object, count};
    return true;
}

bool user_references_share(struct user_references *to, const struct user_references *from)
{
    for (size_t i = 0; i < from->count; i++) {
        if (!user_references_add(to, from->list[i].object, 1))
            return false;
        from->list[i].object->references++;
    }
    return true;
}

void user_references_end(struct user_references *references)
{
    for (size_t i = 0; i < references->count; i++)
        release(references->list[i].object, references->list[i].count);
    free(references->list);
    *references = (struct user_references){NULL, 0};
}

CUresult cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned references, unsigned flags)
{
    if (!object || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    *object = object_new(KIND_USER_OBJECT, sizeof(**object), NULL);
    if (!*object)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*object)->pointer = pointer;
    (*object)->destroy = destroy;
    (*object)->references = references;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count)
{
    if (!object_check(object, KIND_USER_OBJECT) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    object->references += count;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count)
{
    if (!object_check(object, KIND_USER_OBJECT) || !count || count > object->references)
        return CUDA_ERROR_INVALID_VALUE;
    release(object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags)
{
    if (!object_check(graph, KIND_GRAPH) || !object_check(object, KIND_USER_OBJECT) || !count ||
        flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!user_references_add(&graph->objects, object, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
        object->references += count;
    return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count)
{
    if (!object_check(graph, KIND_GRAPH) || !object_check(object, KIND_USER_OBJECT))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->objects.count; i++) {
        struct user_reference *held = &graph->objects.list[i];
        if (held->object != object || !count || held->count < count)
            continue;
        held->count -= count;
        if (!held->count)
            *held = graph->objects.list[--graph->objects.count];
        release(object, count);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
