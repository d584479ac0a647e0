/* Buffers of the application, and functions that need no message. A buffer lies in memory that application, API server and card
 * see as one: the application's writes and the accelerator's cross without a call. */
#include "../../fpga/opae/src/words.h"
#include "opae_guest.h"
#include "opae_types.h"

#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define FLAGS (FPGA_BUF_PREALLOCATED | FPGA_BUF_QUIET | FPGA_BUF_READ_ONLY)

struct buffer {
    fpga_handle handle;
    uint64_t wsid;
    /* As it was allocated. */
    void *block;
    struct buffer *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers;

const char *opae_words(fpga_result result) {
    return words_of(result);
}

fpga_result opae_destroy_token(fpga_token *token) {
    fpga_result result = token ? aviaryDestroyToken(*token) : FPGA_INVALID_PARAM;
    if (result == FPGA_OK)
        *token = NULL;
    return result;
}

fpga_result opae_destroy_properties(fpga_properties *properties) {
    fpga_result result = properties ? aviaryDestroyProperties(*properties) : FPGA_INVALID_PARAM;
    if (result == FPGA_OK)
        *properties = NULL;
    return result;
}

/* Whole pages, zeroed; `block` gets what is to be freed. NULL: there is no more, or no memory that both sides see. */
static void *allocate(uint64_t bytes, void **block) {
    *block = bytes <= SIZE_MAX - PAGE ? aviary_zerocopy_alloc(bytes + PAGE) : NULL;
    return (void *)(((uintptr_t)*block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

static int shares_memory(void) {
    void *probe = aviary_zerocopy_alloc_uninitialized(PAGE);
    int shares = probe && aviary_is_zerocopy(probe);
    aviary_zerocopy_free(probe);
    return shares;
}

static fpga_result share(fpga_handle handle, uint64_t bytes, void **address, uint64_t *wsid, int flags) {
    struct buffer *buffer = malloc(sizeof *buffer);
    void *memory = buffer ? allocate(bytes, &buffer->block) : NULL;
    fpga_result result = memory ? aviaryShareBuffer(handle, memory, bytes, flags, wsid) : FPGA_NO_MEMORY;
    if (result != FPGA_OK) {
        if (memory)
            aviary_zerocopy_free(buffer->block);
        free(buffer);
        return result;
    }
    *address = memory;
    pthread_mutex_lock(&lock);
    *buffer = (struct buffer){handle, *wsid, buffer->block, buffers};
    buffers = buffer;
    pthread_mutex_unlock(&lock);
    return FPGA_OK;
}

fpga_result opae_prepare(fpga_handle handle, uint64_t len, void **buf_addr, uint64_t *wsid, int flags) {
    uint64_t bytes = (len + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    if (flags & ~FLAGS)
        return FPGA_INVALID_PARAM;
    /* Memory that the application has is its own: the card's process cannot see it. */
    if (flags & FPGA_BUF_PREALLOCATED)
        return FPGA_NOT_SUPPORTED;
    if (len == 0 || !buf_addr || !wsid || !aviary_is_handle(handle))
        return FPGA_INVALID_PARAM;
    if (bytes < len)
        return FPGA_NO_MEMORY;
    /* A buffer is polled without calls, which no copy could follow. */
    return shares_memory() ? share(handle, bytes, buf_addr, wsid, flags) : FPGA_NOT_SUPPORTED;
}

/* Takes the first buffer of a handle, of this number unless `any`; NULL: there is none. */
static struct buffer *take(fpga_handle handle, uint64_t wsid, int any) {
    struct buffer **link, *found;
    pthread_mutex_lock(&lock);
    for (link = &buffers; *link && ((*link)->handle != handle || (!any && (*link)->wsid != wsid)); link = &(*link)->next)
        ;
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

static void drop(struct buffer *buffer) {
    aviary_zerocopy_free(buffer->block);
    free(buffer);
}

fpga_result opae_release(fpga_handle handle, uint64_t wsid) {
    fpga_result result = aviaryUnshareBuffer(handle, wsid);
    struct buffer *buffer = result == FPGA_OK ? take(handle, wsid, 0) : NULL;
    if (buffer)
        drop(buffer);
    return result;
}

/* The handle is closed: its accelerator uses none of its buffers any more. */
void opae_forget(fpga_handle handle) {
    struct buffer *buffer;
    while ((buffer = take(handle, 0, 1)))
        drop(buffer);
}

fpga_result opae_children(fpga_handle handle, uint32_t max_children, const fpga_handle *children, uint32_t *num_children) {
    if (!num_children || (max_children && !children) || !aviary_is_handle(handle))
        return FPGA_INVALID_PARAM;
    *num_children = 0;
    return FPGA_OK;
}

fpga_result opae_no_pointer(uint64_t **pointer) {
    *pointer = NULL;
    return FPGA_NOT_SUPPORTED;
}
