#include "driver.h"

#include <stdlib.h>

enum { BUCKETS = 4096 };
static struct object *live[BUCKETS];

static struct object **bucket(const void *handle)
{
    return &live[((uintptr_t)handle >> 4 ^ (uintptr_t)handle >> 16) % BUCKETS];
}

static void list(struct object *object)
{
    struct object **head = bucket(object);

    object->next = *head;
    *head = object;
}

void *object_new(enum kind kind, size_t bytes, void (*destroy)(void *object))
{
    struct object *object = calloc(1, bytes);

    if (!object)
        return NULL;
    object->kind = kind;
    object->references = 1;
    object->destroy = destroy;
    list(object);
    return object;
}

void object_revive(void *object)
{
    object_hold(object);
    list(object);
}

void *object_check(const void *handle, enum kind kind)
{
    for (struct object *object = *bucket(handle); object; object = object->next)
        if (object == handle)
            return object->kind == kind ? object : NULL;
    return NULL;
}

void object_hold(void *object) { ((struct object *)object)->references++; }

void object_drop(void *handle)
{
    struct object *object = handle;

    if (--object->references > 0)
        return;
    if (object->destroy)
        object->destroy(object);
    free(object);
}

void object_end(void *handle)
{
    struct object **link = bucket(handle);

    while (*link && *link != handle)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = (*link)->next;
    object_drop(handle);
}
