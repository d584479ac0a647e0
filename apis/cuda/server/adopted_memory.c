/* Pages of the arena at addresses of the application's own memory, which it has registered: mapped here at the same addresses, so
 * that the device's pointers are the host's. The guest chooses the address: only one at which this process has nothing, and none of
 * the device's; what is mapped is a part of the arena's file. What a hostile guest can use up so is its own API server's. */
#include "moving.h"
#include "server.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { PAGE = 4096 };

struct adoption {
    struct cuda_adopted entry;
    struct adoption *next;
};

static struct adoption *adoptions;
static pthread_mutex_t adoptions_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_allowed(const void *arena, size_t bytes, CUdeviceptr at) {
    return arena && bytes && (uintptr_t)arena % PAGE == 0 && bytes % PAGE == 0 && at % PAGE == 0 && at && at <= UINTPTR_MAX - bytes
           && (at + bytes <= CUDA_PLACES || at >= CUDA_PLACES_END);
}

/* True if the arena's pages are there now. */
static int map_pages(void *arena, size_t bytes, void *at) {
    uint64_t offset = 0;
    int file = aviary_zerocopy_file(arena, bytes, &offset);
    if (file < 0)
        return 0;
    void *mapped = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file, (off_t)offset);
    close(file);
    /* A kernel that does not know the flag may have chosen another place. */
    if (mapped != MAP_FAILED && mapped != at)
        munmap(mapped, bytes);
    return mapped == at;
}

static CUresult adopt(void *arena, size_t bytes, CUdeviceptr at) {
    if (!is_allowed(arena, bytes, at))
        return CUDA_ERROR_INVALID_VALUE;
    struct adoption *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->entry = (struct cuda_adopted){at, bytes, (uintptr_t)arena};
    if (!map_pages(arena, bytes, (void *)(uintptr_t)at)) {
        free(made);
        return CUDA_ERROR_ALREADY_MAPPED;
    }
    pthread_mutex_lock(&adoptions_lock);
    made->next = adoptions;
    adoptions = made;
    pthread_mutex_unlock(&adoptions_lock);
    return CUDA_SUCCESS;
}

void *cuda_adopt_function(void) {
    return (void *)adopt;
}

/* Only what was mapped here, and as it was. */
static CUresult disown(CUdeviceptr at, size_t bytes) {
    struct adoption *ended = NULL;
    pthread_mutex_lock(&adoptions_lock);
    struct adoption **link = &adoptions;
    while (*link && ((*link)->entry.at != at || (*link)->entry.bytes != bytes))
        link = &(*link)->next;
    if ((ended = *link)) {
        *link = ended->next;
        munmap((void *)(uintptr_t)at, bytes);
    }
    pthread_mutex_unlock(&adoptions_lock);
    free(ended);
    return ended ? CUDA_SUCCESS : CUDA_ERROR_NOT_MAPPED;
}

void *cuda_disown_function(void) {
    return (void *)disown;
}

/* True if all of these bytes lie in such pages. */
int cuda_is_adopted(CUdeviceptr at, size_t bytes) {
    CUdeviceptr end = at + bytes;
    int found = bytes && end > at;
    pthread_mutex_lock(&adoptions_lock);
    while (found && at < end) {
        const struct adoption *a = adoptions;
        while (a && (at < a->entry.at || at - a->entry.at >= a->entry.bytes))
            a = a->next;
        found = a != NULL;
        if (a)
            at = a->entry.at + a->entry.bytes;
    }
    pthread_mutex_unlock(&adoptions_lock);
    return found;
}

int cuda_list_adopted(struct cuda_adopted **entries, size_t *count) {
    size_t room = 0;
    pthread_mutex_lock(&adoptions_lock);
    for (const struct adoption *a = adoptions; a; a = a->next)
        room++;
    *count = 0;
    *entries = room ? calloc(room, sizeof **entries) : NULL;
    for (const struct adoption *a = adoptions; a && *entries; a = a->next)
        (*entries)[(*count)++] = a->entry;
    pthread_mutex_unlock(&adoptions_lock);
    return !room || *entries;
}

/* In another process: an address that is taken there ends the move, and the session stays where it is. */
CUresult cuda_adopt_again(const struct cuda_adopted *entries, size_t count) {
    CUresult status = CUDA_SUCCESS;
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++) {
        char *arena = (char *)(uintptr_t)entries[i].arena;
        size_t bytes = entries[i].bytes;
        if (!bytes || bytes - 1 > UINTPTR_MAX - (uintptr_t)arena || !aviary_is_zerocopy(arena) || !aviary_is_zerocopy(arena + bytes - 1))
            return CUDA_ERROR_INVALID_VALUE;
        status = adopt(arena, bytes, entries[i].at);
    }
    return status;
}
