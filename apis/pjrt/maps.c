/* Host memory that the program maps for DMA. Copies need no such mapping, as the plug-in sees none of that memory: what is mapped is
 * noted here, so that a program hears of the same mistakes as natively. */
#include "pjrt_types.h"
#include "known.h"
#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>

struct map {
    struct map *next;
    PJRT_Client *client;
    uintptr_t start, end;
};
static struct map *maps;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

PJRT_Error *dma_map(PJRT_Client *client, void *data, size_t size) {
    /* A plug-in that maps nothing says so itself. */
    PJRT_Error *error = client ? aviary_pjrt_try_map(client, 0) : made(0);
    struct map *map = error ? NULL : malloc(sizeof *map);
    uintptr_t start = (uintptr_t)data, end;
    if (error)
        return error;
    if (!map || !data || size == 0 || __builtin_add_overflow(start, size, &end)) {
        free(map);
        return error_of(PJRT_Error_Code_INVALID_ARGUMENT, "this memory cannot be mapped");
    }
    pthread_mutex_lock(&lock);
    const struct map *other = maps;
    while (other && (other->client != client || other->end <= start || end <= other->start))
        other = other->next;
    if (!other) {
        *map = (struct map){maps, client, start, end};
        maps = map;
    }
    pthread_mutex_unlock(&lock);
    if (!other)
        return NULL;
    free(map);
    return error_of(PJRT_Error_Code_INVALID_ARGUMENT, "this memory is mapped");
}
PJRT_Error *dma_unmap(PJRT_Client *client, void *data) {
    struct map *map;
    pthread_mutex_lock(&lock);
    struct map **at = &maps;
    while ((map = *at) != NULL && (map->client != client || map->start != (uintptr_t)data))
        at = &map->next;
    if (map)
        *at = map->next;
    pthread_mutex_unlock(&lock);
    if (map) {
        free(map);
        return NULL;
    }
    PJRT_Error *error = client ? aviary_pjrt_try_map(client, 1) : made(0);
    return error ? error : error_of(PJRT_Error_Code_INVALID_ARGUMENT, "this memory is not mapped");
}
/* A client has ended, and what it mapped with it. */
int forget_maps(PJRT_Client *client) {
    pthread_mutex_lock(&lock);
    for (struct map **at = &maps, *map; (map = *at) != NULL;) {
        if (map->client != client) {
            at = &map->next;
            continue;
        }
        *at = map->next;
        free(map);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
