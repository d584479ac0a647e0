#include "guest/context_storage.h"

#include <pthread.h>
#include <stdlib.h>

struct entry {
    CUcontext context;
    void *key, *value;
    context_storage_destructor destructor;
    struct entry *next;
};

/* A handful of entries for each context: cudart and each library that has a copy of it store one or two. */
static struct entry *entries;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A child must not inherit the lock held by a thread that it does not have. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void guard_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static void enter(void)
{
    static pthread_once_t guarded = PTHREAD_ONCE_INIT;

    pthread_once(&guarded, guard_forks);
    pthread_mutex_lock(&lock);
}

static CUresult resolve(CUcontext *context)
{
    CUresult result = CUDA_SUCCESS;

    if (!*context)
        result = cuCtxGetCurrent(context);
    if (result == CUDA_SUCCESS && !*context)
        result = CUDA_ERROR_INVALID_CONTEXT;
    return result;
}

/* The link that points to the entry, or to the end of the list. To be called with the lock held. */
static struct entry **find(CUcontext context, const void *key)
{
    struct entry **link = &entries;

    while (*link && ((*link)->context != context || (*link)->key != key))
        link = &(*link)->next;
    return link;
}

CUresult context_storage_put(CUcontext context, void *key, void *value, context_storage_destructor destructor)
{
    CUresult result = resolve(&context);
    struct entry **link;

    if (result != CUDA_SUCCESS)
        return result;
    enter();
    link = find(context, key);
    if (!*link)
        *link = calloc(1, sizeof(**link));
    if (*link) {
        (*link)->context = context;
        (*link)->key = key;
        (*link)->value = value;
        (*link)->destructor = destructor;
    } else {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult context_storage_delete(CUcontext context, void *key)
{
    CUresult result = resolve(&context);
    struct entry **link, *found;

    if (result != CUDA_SUCCESS)
        return result;
    enter();
    link = find(context, key);
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&lock);
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult context_storage_get(void **value, CUcontext context, void *key)
{
    CUresult result = value ? resolve(&context) : CUDA_ERROR_INVALID_VALUE;
    struct entry *found;

    if (result != CUDA_SUCCESS)
        return result;
    enter();
    found = *find(context, key);
    if (found)
        *value = found->value;
    else
        result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&lock);
    return result;
}

void context_storage_end(CUcontext context)
{
    /* One by one, as a destructor may store or delete entries itself. */
    for (;;) {
        struct entry **link = &entries, *found;

        enter();
        while (*link && (*link)->context != context)
            link = &(*link)->next;
        found = *link;
        if (found)
            *link = found->next;
        pthread_mutex_unlock(&lock);
        if (!found)
            return;
        if (found->destructor)
            found->destructor(found->context, found->key, found->value);
        free(found);
    }
}
