/* The objects of which programs have pointers. */
#include "objects.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;

void *object_new(enum object_kind kind, size_t bytes, void (*destroy)(struct object *))
{
    struct object *object = calloc(1, bytes);

    if (object)
        *object = (struct object){kind, 1, destroy, NULL};
    return object;
}

void object_show(void *object)
{
    pthread_mutex_lock(&lock);
    ((struct object *)object)->next = objects;
    objects = object;
    pthread_mutex_unlock(&lock);
}

/* The link to an object, with the lock; NULL: there is none. */
static struct object **find(const void *pointer, enum object_kind kind)
{
    struct object **link = &objects;

    while (*link && *link != pointer)
        link = &(*link)->next;
    return *link && (*link)->kind == kind ? link : NULL;
}

void *object_hold(const void *pointer, enum object_kind kind)
{
    struct object **link, *found;

    pthread_mutex_lock(&lock);
    link = find(pointer, kind);
    found = link ? *link : NULL;
    if (found)
        found->uses++;
    pthread_mutex_unlock(&lock);
    return found;
}

void object_release(void *pointer)
{
    struct object *object = pointer;
    bool last;

    pthread_mutex_lock(&lock);
    last = --object->uses == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        object->destroy(object);
        free(object);
    }
}

bool object_end(const void *pointer, enum object_kind kind)
{
    struct object **link, *found;

    pthread_mutex_lock(&lock);
    link = find(pointer, kind);
    found = link ? *link : NULL;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&lock);
    if (found)
        object_release(found);
    return found != NULL;
}

bool object_any(enum object_kind kind, bool (*look)(const struct object *, const void *context), const void *context)
{
    const struct object *object;
    bool found = false;

    pthread_mutex_lock(&lock);
    for (object = objects; object && !found; object = object->next)
        found = object->kind == kind && look(object, context);
    pthread_mutex_unlock(&lock);
    return found;
}
