/* Memory objects that are given back while their memory is out, and made again by the calls that made them. */
#include "server.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- Objects that end here and live on for the application ---------------------------------------- */

/* How long the runtime may take to give an object back once nothing uses it, and how often that is looked at. */
#define RELEASE_NS 1000000000
#define LOOK_US 20

/* Objects that are being given back. The runtime tells of their end what it would tell of any end: none of it is the application's to
 * hear, nor the accounts'. */
static struct {
    pthread_mutex_t lock;
    cl_mem *all;
    size_t count, room;
} leaving = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock; its place, or the count. */
static size_t place_of(cl_mem memory) {
    size_t at = 0;
    while (at < leaving.count && leaving.all[at] != memory)
        at++;
    return at;
}

static int is_leaving(cl_mem memory) {
    pthread_mutex_lock(&leaving.lock);
    int found = place_of(memory) < leaving.count;
    pthread_mutex_unlock(&leaving.lock);
    return found;
}

static int begin_leaving(cl_mem memory) {
    pthread_mutex_lock(&leaving.lock);
    if (leaving.count == leaving.room) {
        size_t room = leaving.room ? 2 * leaving.room : 16;
        cl_mem *larger = realloc(leaving.all, room * sizeof *larger);
        if (larger) {
            leaving.all = larger;
            leaving.room = room;
        }
    }
    int has_room = leaving.count < leaving.room;
    if (has_room)
        leaving.all[leaving.count++] = memory;
    pthread_mutex_unlock(&leaving.lock);
    return has_room;
}

int opencl_ends_unseen(cl_mem memory) {
    pthread_mutex_lock(&leaving.lock);
    size_t at = place_of(memory);
    int unseen = at < leaving.count;
    if (unseen)
        leaving.all[at] = leaving.all[--leaving.count];
    pthread_mutex_unlock(&leaving.lock);
    return unseen;
}

/* ---- Which leave ----------------------------------------------------------------------------------- */

#define STAYS UINT64_MAX

/* What is mapped is the host's until it is unmapped, and a pipe has no content that could be read. */
static int can_leave(cl_mem memory) {
    cl_uint mapped = 0;
    cl_mem_object_type type = 0;
    return clGetMemObjectInfo(memory, CL_MEM_MAP_COUNT, sizeof mapped, &mapped, NULL) == CL_SUCCESS && !mapped
           && clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof type, &type, NULL) == CL_SUCCESS && type != CL_MEM_OBJECT_PIPE;
}

uint64_t opencl_evictable_bytes(cl_mem memory) {
    return can_leave(memory) ? opencl_content_bytes(memory) : STAYS;
}

int opencl_evict(cl_mem memory, void *to, size_t bytes) {
    return opencl_save_memory(memory, 0, to, bytes) != (int64_t)bytes;
}

int opencl_return(cl_mem memory, const void *from, size_t bytes) {
    return opencl_load_memory(memory, 0, from, bytes);
}

/* A part of a buffer ends with no notice. */
static int tells_its_end(cl_mem memory) {
    cl_mem parent = NULL;
    cl_mem_object_type type = 0;
    return clGetMemObjectInfo(memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL) == CL_SUCCESS
           && clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof type, &type, NULL) == CL_SUCCESS
           && !(parent && type == CL_MEM_OBJECT_BUFFER);
}

int opencl_drop(cl_mem memory, uint64_t references) {
    int tells = tells_its_end(memory);
    if (tells && !begin_leaving(memory))
        return 1;
    for (uint64_t count = 0; count < references; count++)
        clReleaseMemObject(memory);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until = opencl_later(until, RELEASE_NS);
    while (tells && is_leaving(memory) && !opencl_has_passed(until))
        usleep(LOOK_US);
    return tells && is_leaving(memory);
}
