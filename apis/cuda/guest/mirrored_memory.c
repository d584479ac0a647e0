/* `__managed__` variables: the driver has them at an address where kernels find them, and the application reads and writes
 * the same address in its own process, where a copy is. The two are made equal where a program may rely on it: what the
 * application wrote reaches the device before the next launch, what kernels wrote reaches the application when it has
 * waited for them. Each byte is whose it was changed by, so that both may change different ones at the same time. (Memory
 * that a program allocates as managed is shared as it is: managed.c. The driver's own, where variables are, cannot be.)
 * So is little page-locked memory that kernels look into, where both sides share none: a flag, a counter. */
#include "guest/mirrored_memory.h"
#include "guest/ranges.h"
#include <stdint.h>
#include <string.h>

struct managed_variable *cuda_variables;
pthread_mutex_t cuda_variables_lock = PTHREAD_MUTEX_INITIALIZER;
/* Non-zero if there are any, for callers that need no more; non-zero if kernels may have changed them since they were fetched. */
static int have_variables, variables_used;

/* Where it is in the list, or would be. */
struct managed_variable **cuda_find_variable(CUdeviceptr base) {
    struct managed_variable **link = &cuda_variables;
    while (*link && (*link)->base != base)
        link = &(*link)->next;
    return link;
}

/* With the lock: from now on there is one. */
void cuda_add_variable(struct managed_variable *variable) {
    variable->next = cuda_variables;
    cuda_variables = variable;
    __atomic_store_n(&have_variables, 1, __ATOMIC_RELEASE);
}

int cuda_has_variables(void) {
    return __atomic_load_n(&have_variables, __ATOMIC_ACQUIRE);
}

/* True if a kernel finds the application's contents there. */
int cuda_is_mapped(const void *memory) {
    CUdeviceptr address = (CUdeviceptr)memory;
    int found = 0;
    if (!cuda_has_variables())
        return 0;
    pthread_mutex_lock(&cuda_variables_lock);
    for (const struct managed_variable *v = cuda_variables; v && !found; v = v->next)
        found = address >= v->base && address - v->base < v->bytes;
    pthread_mutex_unlock(&cuda_variables_lock);
    return found;
}

/* ---- Making both sides equal ------------------------------------------------------------------ */

/* With the lock: what the application changed since. */
CUresult cuda_send_changes(struct managed_variable *variable) {
    const unsigned char *here = (const unsigned char *)variable->base;
    CUresult status = CUDA_SUCCESS;
    if (memcmp(here, variable->twin, variable->bytes) == 0)
        return status;
    for (size_t at = 0; at < variable->bytes && status == CUDA_SUCCESS;) {
        size_t end = at;
        while (end < variable->bytes && here[end] != variable->twin[end])
            end++;
        if (end > at) {
            /* Another thread may be writing: what is sent is what is remembered. */
            memcpy(variable->twin + at, here + at, end - at);
            status = aviaryWriteVariable(variable->base + at, variable->twin + at, end - at);
        }
        at = end + 1;
    }
    return status;
}

/* Before anything that may use them on the device. */
CUresult cuda_send_variables(void) {
    CUresult status = CUDA_SUCCESS;
    if (!cuda_has_variables())
        return status;
    pthread_mutex_lock(&cuda_variables_lock);
    for (struct managed_variable *v = cuda_variables; v && status == CUDA_SUCCESS; v = v->next)
        status = cuda_send_changes(v);
    __atomic_store_n(&variables_used, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&cuda_variables_lock);
    return status;
}

/* With the lock. What the application has changed meanwhile stays changed, and is sent later. One that cannot be read has
 * gone with its context, or the calling thread has none: the application keeps what it has. */
void cuda_fetch_changes(struct managed_variable *variable) {
    unsigned char *here = (unsigned char *)variable->base;
    if (aviaryReadVariable(variable->base, variable->fetched, variable->bytes) != CUDA_SUCCESS
        || memcmp(variable->fetched, variable->twin, variable->bytes) == 0)
        return;
    for (size_t i = 0; i < variable->bytes; i++)
        if (variable->fetched[i] != variable->twin[i]) {
            if (here[i] == variable->twin[i])
                here[i] = variable->fetched[i];
            variable->twin[i] = variable->fetched[i];
        }
}

/* After a call that has waited for the device. */
void cuda_waited(CUresult result) {
    cuda_note_result(result);
    if (result != CUDA_SUCCESS || !__atomic_load_n(&variables_used, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&cuda_variables_lock);
    for (struct managed_variable *v = cuda_variables; v; v = v->next)
        cuda_fetch_changes(v);
    pthread_mutex_unlock(&cuda_variables_lock);
}
