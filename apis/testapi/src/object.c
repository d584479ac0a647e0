#include "object.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *live;
/* Natively a boxed handle points at an object whose first word is this table. */
static const void *const dispatch[4] = {0};

void *object_new(enum kind kind, size_t bytes) {
    struct object *o = calloc(1, bytes);
    if (!o)
        return NULL;
    o->dispatch = dispatch;
    o->kind = kind;
    o->references = 1;
    pthread_mutex_lock(&lock);
    o->next = live;
    live = o;
    pthread_mutex_unlock(&lock);
    return o;
}

static struct object **find(const void *handle, enum kind kind) {
    for (struct object **o = &live; *o; o = &(*o)->next)
        if (*o == handle)
            return (*o)->kind == kind ? o : NULL;
    return NULL;
}

void *object_hold(const void *handle, enum kind kind) {
    pthread_mutex_lock(&lock);
    struct object **o = find(handle, kind);
    return o ? *o : NULL;
}

void object_let_go(void) {
    pthread_mutex_unlock(&lock);
}

void *object_check(const void *handle, enum kind kind) {
    void *found = object_hold(handle, kind);
    object_let_go();
    return found;
}

bool object_retain(void *handle, enum kind kind) {
    pthread_mutex_lock(&lock);
    struct object **o = find(handle, kind);
    if (o)
        (*o)->references++;
    pthread_mutex_unlock(&lock);
    return o != NULL;
}

void *object_release(void *handle, enum kind kind, bool *found) {
    struct object *dead = NULL;
    pthread_mutex_lock(&lock);
    struct object **o = find(handle, kind);
    *found = o != NULL;
    if (o && --(*o)->references == 0) {
        dead = *o;
        *o = dead->next;
    }
    pthread_mutex_unlock(&lock);
    return dead;
}
