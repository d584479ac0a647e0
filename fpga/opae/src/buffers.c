/* Memory that a program and its accelerator share. */
#include "objects.h"
#include "shared.h"

#include <stdlib.h>
#include <unistd.h>

#define FLAGS (FPGA_BUF_PREALLOCATED | FPGA_BUF_QUIET | FPGA_BUF_READ_ONLY)

/* Makes a buffer one of the handle's; its number. */
static uint64_t keep(struct handle *handle, struct buffer *buffer)
{
    uint64_t number;

    pthread_mutex_lock(&handle->lock);
    number = buffer->number = handle->next_number++;
    buffer->next = handle->buffers;
    handle->buffers = buffer;
    pthread_mutex_unlock(&handle->lock);
    return number;
}

static fpga_result prepare(struct handle *handle, uint64_t len, void **buf_addr, uint64_t *wsid, int flags)
{
    unsigned how = (flags & FPGA_BUF_PREALLOCATED ? AVIARY_FPGA_EXISTING : 0)
        | (flags & FPGA_BUF_READ_ONLY ? AVIARY_FPGA_READ_ONLY : 0);
    struct buffer *buffer = calloc(1, sizeof *buffer);
    int error;

    if (!buffer)
        return FPGA_NO_MEMORY;
    buffer->address = *buf_addr;
    error = aviary_fpga_map(handle->card, &buffer->address, len, how, &buffer->io_address);
    if (error) {
        free(buffer);
        return result_of(error, flags & FPGA_BUF_QUIET ? NULL : "fpgaPrepareBuffer");
    }
    *buf_addr = buffer->address;
    *wsid = keep(handle, buffer);
    return FPGA_OK;
}

static fpga_result share(struct handle *handle, int file, uint64_t offset, uint64_t len, int flags, uint64_t *wsid)
{
    unsigned how = flags & FPGA_BUF_READ_ONLY ? AVIARY_FPGA_READ_ONLY : 0;
    struct buffer *buffer = calloc(1, sizeof *buffer);
    int error;

    if (!buffer)
        return FPGA_NO_MEMORY;
    error = aviary_fpga_map_file(handle->card, file, offset, len, how, &buffer->io_address);
    if (error) {
        free(buffer);
        return result_of(error, flags & FPGA_BUF_QUIET ? NULL : "fpgaPrepareBuffer");
    }
    *wsid = keep(handle, buffer);
    return FPGA_OK;
}

EXPORTED fpga_result aviary_opae_share(fpga_handle handle, int file, uint64_t offset, uint64_t len, int flags, uint64_t *wsid)
{
    struct handle *held = wsid && len && !(flags & ~(FPGA_BUF_QUIET | FPGA_BUF_READ_ONLY)) ? object_hold(handle, HANDLE) : NULL;
    fpga_result result;

    if (!held)
        return FPGA_INVALID_PARAM;
    result = share(held, file, offset, len, flags, wsid);
    object_release(held);
    return result;
}

EXPORTED fpga_result fpgaPrepareBuffer(fpga_handle handle, uint64_t len, void **buf_addr, uint64_t *wsid, int flags)
{
    bool preallocated = flags & FPGA_BUF_PREALLOCATED;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct handle *held;
    fpga_result result;

    if (flags & ~FLAGS)
        return FPGA_INVALID_PARAM;
    /* The question for memory of the program's own. */
    if (preallocated && len == 0 && !buf_addr)
        return FPGA_OK;
    if (len == 0 || !buf_addr || !wsid || (preallocated && (len % page || !*buf_addr || (uintptr_t)*buf_addr % page)))
        return FPGA_INVALID_PARAM;
    held = object_hold(handle, HANDLE);
    if (!held)
        return FPGA_INVALID_PARAM;
    result = prepare(held, len, buf_addr, wsid, flags);
    object_release(held);
    return result;
}

/* The link to a buffer, with the lock. */
static struct buffer **find(struct handle *handle, uint64_t wsid)
{
    struct buffer **link = &handle->buffers;

    while (*link && (*link)->number != wsid)
        link = &(*link)->next;
    return link;
}

EXPORTED fpga_result fpgaReleaseBuffer(fpga_handle handle, uint64_t wsid)
{
    struct handle *held = object_hold(handle, HANDLE);
    struct buffer **link, *buffer;
    fpga_result result;

    if (!held)
        return FPGA_INVALID_PARAM;
    pthread_mutex_lock(&held->lock);
    link = find(held, wsid);
    buffer = *link;
    if (buffer)
        *link = buffer->next;
    pthread_mutex_unlock(&held->lock);
    if (!buffer)
        result = FPGA_INVALID_PARAM;
    else if (buffer->address)
        result = result_of(aviary_fpga_unmap(held->card, buffer->address), "fpgaReleaseBuffer");
    else
        result = result_of(aviary_fpga_unmap_file(held->card, buffer->io_address), "fpgaReleaseBuffer");
    free(buffer);
    object_release(held);
    return result;
}

EXPORTED fpga_result fpgaGetIOAddress(fpga_handle handle, uint64_t wsid, uint64_t *ioaddr)
{
    struct handle *held = ioaddr ? object_hold(handle, HANDLE) : NULL;
    const struct buffer *buffer;

    if (!held)
        return FPGA_INVALID_PARAM;
    pthread_mutex_lock(&held->lock);
    buffer = *find(held, wsid);
    if (buffer)
        *ioaddr = buffer->io_address;
    pthread_mutex_unlock(&held->lock);
    object_release(held);
    return buffer ? FPGA_OK : FPGA_NOT_FOUND;
}
