/* Accelerators that are open, and their registers. */
#include "objects.h"

#include <stdio.h>
#include <stdlib.h>

static void text_of(const fpga_guid guid, char text[33])
{
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", guid[i]);
}

/* A handle that is open and the resource of one that shall be. */
struct wish {
    const struct resource *resource;
    bool shared;
};

/* In this process; of other processes each has a virtual accelerator of its own. */
static bool excludes(const struct object *object, const void *context)
{
    const struct handle *handle = (const struct handle *)object;
    const struct wish *wish = context;

    return resource_id(&handle->resource) == resource_id(wish->resource) && !(handle->shared && wish->shared);
}

static void close_handle(struct object *object)
{
    struct handle *handle = (struct handle *)object;

    /* Memory of others may be used for something else afterwards: nothing is under way there after a reset. */
    if (handle->card)
        aviary_fpga_reset(handle->card);
    /* Buffers that were not released stay readable, as with OPAE's own library. */
    aviary_fpga_detach(handle->card);
    while (handle->buffers) {
        struct buffer *buffer = handle->buffers;
        handle->buffers = buffer->next;
        free(buffer);
    }
    pthread_mutex_destroy(&handle->lock);
}

static fpga_result open_resource(const struct resource *resource, fpga_handle *handle, bool shared)
{
    struct wish wish = {resource, shared};
    struct handle *opened;
    char guid[33];
    int error;

    /* A card itself has nothing to open: it cannot be managed. */
    if (resource->objtype != FPGA_ACCELERATOR)
        return FPGA_NOT_SUPPORTED;
    if (object_any(HANDLE, excludes, &wish))
        return FPGA_BUSY;
    opened = object_new(HANDLE, sizeof *opened, close_handle);
    if (!opened)
        return FPGA_NO_MEMORY;
    opened->resource = *resource;
    opened->shared = shared;
    opened->next_number = 1;
    pthread_mutex_init(&opened->lock, NULL);
    text_of(resource->guid, guid);
    error = aviary_fpga_connect(guid, &opened->card);
    if (error) {
        object_release(opened);
        return result_of(error, "fpgaOpen");
    }
    object_show(opened);
    *handle = opened;
    return FPGA_OK;
}

EXPORTED fpga_result fpgaOpen(fpga_token token, fpga_handle *handle, int flags)
{
    struct token *held;
    fpga_result result;

    if (!handle || flags & ~FPGA_OPEN_SHARED)
        return FPGA_INVALID_PARAM;
    held = object_hold(token, TOKEN);
    if (!held)
        return FPGA_INVALID_PARAM;
    result = open_resource(&held->resource, handle, flags & FPGA_OPEN_SHARED);
    object_release(held);
    return result;
}

EXPORTED fpga_result fpgaClose(fpga_handle handle)
{
    return object_end(handle, HANDLE) ? FPGA_OK : FPGA_INVALID_PARAM;
}

EXPORTED fpga_result fpgaReset(fpga_handle handle)
{
    struct handle *held = object_hold(handle, HANDLE);
    fpga_result result;

    if (!held)
        return FPGA_INVALID_PARAM;
    result = result_of(aviary_fpga_reset(held->card), "fpgaReset");
    object_release(held);
    return result;
}

EXPORTED fpga_result fpgaGetChildren(fpga_handle handle, uint32_t max_children, fpga_handle *children, uint32_t *num_children)
{
    struct handle *held = num_children && (children || !max_children) ? object_hold(handle, HANDLE) : NULL;

    if (!held)
        return FPGA_INVALID_PARAM;
    object_release(held);
    *num_children = 0;
    return FPGA_OK;
}

/* The handle for an access of `bytes`, held; NULL: there is no such place. */
static struct handle *at(fpga_handle handle, uint32_t mmio_num, uint64_t offset, uint64_t bytes)
{
    if (mmio_num != 0 || offset % bytes || offset > PAGE_BYTES - bytes)
        return NULL;
    return object_hold(handle, HANDLE);
}

static fpga_result done(struct handle *held, int error, const char *function)
{
    object_release(held);
    return result_of(error, function);
}

EXPORTED fpga_result fpgaWriteMMIO64(fpga_handle handle, uint32_t mmio_num, uint64_t offset, uint64_t value)
{
    struct handle *held = at(handle, mmio_num, offset, 8);

    return held ? done(held, aviary_fpga_write(held->card, (uint32_t)offset, value), "fpgaWriteMMIO64") : FPGA_INVALID_PARAM;
}

EXPORTED fpga_result fpgaReadMMIO64(fpga_handle handle, uint32_t mmio_num, uint64_t offset, uint64_t *value)
{
    struct handle *held = value ? at(handle, mmio_num, offset, 8) : NULL;

    return held ? done(held, aviary_fpga_read(held->card, (uint32_t)offset, value), "fpgaReadMMIO64") : FPGA_INVALID_PARAM;
}

EXPORTED fpga_result fpgaWriteMMIO32(fpga_handle handle, uint32_t mmio_num, uint64_t offset, uint32_t value)
{
    struct handle *held = at(handle, mmio_num, offset, 4);

    return held ? done(held, aviary_fpga_write32(held->card, (uint32_t)offset, value), "fpgaWriteMMIO32") : FPGA_INVALID_PARAM;
}

EXPORTED fpga_result fpgaReadMMIO32(fpga_handle handle, uint32_t mmio_num, uint64_t offset, uint32_t *value)
{
    struct handle *held = value ? at(handle, mmio_num, offset, 4) : NULL;

    return held ? done(held, aviary_fpga_read32(held->card, (uint32_t)offset, value), "fpgaReadMMIO32") : FPGA_INVALID_PARAM;
}

/* Sets whether the registers are mapped; a program that did not map them may use the functions above as well. */
static fpga_result set_mapped(fpga_handle handle, uint32_t mmio_num, bool mapped)
{
    struct handle *held = mmio_num == 0 ? object_hold(handle, HANDLE) : NULL;
    bool before;

    if (!held)
        return FPGA_INVALID_PARAM;
    pthread_mutex_lock(&held->lock);
    before = held->mapped;
    held->mapped = mapped;
    pthread_mutex_unlock(&held->lock);
    object_release(held);
    return before || mapped ? FPGA_OK : FPGA_INVALID_PARAM;
}

EXPORTED fpga_result fpgaMapMMIO(fpga_handle handle, uint32_t mmio_num, uint64_t **mmio_ptr)
{
    struct handle *held;
    volatile void *page;

    if (!mmio_ptr)
        return set_mapped(handle, mmio_num, true);
    *mmio_ptr = NULL;
    held = mmio_num == 0 ? object_hold(handle, HANDLE) : NULL;
    if (!held)
        return FPGA_INVALID_PARAM;
    page = aviary_fpga_page(held->card);
    object_release(held);
    /* Outside of virtual machines each access is a message to the card's process: there is nothing to point to. */
    if (!page)
        return FPGA_NOT_SUPPORTED;
    *mmio_ptr = (uint64_t *)page;
    return set_mapped(handle, mmio_num, true);
}

EXPORTED fpga_result fpgaUnmapMMIO(fpga_handle handle, uint32_t mmio_num)
{
    return set_mapped(handle, mmio_num, false);
}
