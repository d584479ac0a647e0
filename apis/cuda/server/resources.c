/* Descriptions of parts of a device, which applications pass back: only those that the driver made are. */
#include "server.h"
#include <pthread.h>
#include <string.h>

enum { MOST_RESOURCES = 4096 };

static CUdevResource resources[MOST_RESOURCES];
static size_t resource_count;
static pthread_mutex_t resources_lock = PTHREAD_MUTEX_INITIALIZER;

/* With the lock. */
static int is_known(const CUdevResource *resource) {
    for (size_t i = 0; i < resource_count; i++)
        if (memcmp(&resources[i], resource, sizeof *resource) == 0)
            return 1;
    return 0;
}

/* More of them than a program has a use for are not remembered. */
void cuda_keep_resources(const CUdevResource *made, unsigned int count) {
    pthread_mutex_lock(&resources_lock);
    for (unsigned int i = 0; made && i < count && resource_count < MOST_RESOURCES; i++)
        if (!is_known(&made[i]))
            resources[resource_count++] = made[i];
    pthread_mutex_unlock(&resources_lock);
}

int cuda_are_resources(const CUdevResource *wanted, unsigned int count) {
    int known = wanted != NULL;
    pthread_mutex_lock(&resources_lock);
    for (unsigned int i = 0; known && i < count; i++)
        known = is_known(&wanted[i]);
    pthread_mutex_unlock(&resources_lock);
    return known;
}
