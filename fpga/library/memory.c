/* Memory that program and accelerator share. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* The name of files with memory, as /proc/self/maps shows it. */
#define FILE_NAME "aviary-fpga"

/* The bytes of the region that so many bytes take: places of whole large pages keep the others' large. */
static size_t whole(size_t length)
{
    return (length + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

/* The first gap of the region that is large enough, as the link that leads to what follows it. */
static struct block **gap(aviary_fpga *card, size_t length, char **place)
{
    struct block **link = &card->blocks;

    *place = card->region;
    for (; *link; link = &(*link)->next) {
        if ((size_t)((*link)->place - *place) >= length)
            return link;
        *place = (*link)->place + whole((*link)->length);
    }
    return (size_t)(card->region + card->region_bytes - *place) >= length ? link : NULL;
}

/* With the lock: the library's file, as long as the region, sealed so that it cannot shrink under the card. Pages come when they
 * are used. A process that may write no files so long (ulimit -f) has as much memory as it may. A negative error. */
static int own_file(aviary_fpga *card)
{
    struct rlimit most;
    uint64_t bytes = card->region_bytes;
    int file;

    /* For a function the pages are the program's own. */
    if (card->file >= 0 || card->function)
        return 0;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes)
        bytes = most.rlim_cur & ~(uint64_t)(HUGE_PAGE - 1);
    file = memfd_create(FILE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file >= 0 && (ftruncate(file, (off_t)bytes) != 0 || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
        int error = errno;
        close(file);
        errno = error;
        file = -1;
    }
    if (file < 0)
        return -errno;
    card->file = file;
    card->file_bytes = bytes;
    return 0;
}

static void *reserve_again(void *place, size_t length)
{
    return mmap(place, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Pages with the content of `length` bytes at `address` take the place of those. `file`: they are its pages from `offset` on,
 * otherwise the program's own. The content is what it was when the copy passed it: other threads must not write meanwhile. */
static int replace_pages(char *address, size_t length, int file, uint64_t offset)
{
    int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *copy = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, file, (off_t)offset);

    if (copy == MAP_FAILED)
        return -errno;
    memcpy(copy, address, length);
    if (mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
        int error = -errno;
        munmap(copy, length);
        return error;
    }
    return 0;
}

/* All of this memory is mapped with these rights (rw-p: the program's alone; rw-s: shared), from a file of this name or any. */
static int is_mapped(const char *address, size_t length, const char *as, const char *file)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uintptr_t at = (uintptr_t)address, end = at + length, from, to;
    char line[512], rights[5];

    if (!maps)
        return 0;
    while (at < end && fgets(line, sizeof line, maps)) {
        /* The rest of a line that is longer begins with no numbers. */
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && from <= at && at < to) {
            if (strcmp(rights, as) != 0 || (file && !strstr(line, file)))
                break;
            at = to;
        }
    }
    fclose(maps);
    return at >= end;
}

static int overlaps(const struct block *blocks, const char *address, size_t length)
{
    for (; blocks; blocks = blocks->next)
        if (blocks->address && address < blocks->address + blocks->length && blocks->address < address + length)
            return 1;
    return 0;
}

/* Its place in the library's file. */
static uint64_t offset_of(const aviary_fpga *card, const struct block *block)
{
    return (uint64_t)(block->place - card->region);
}

/* Gives the pages of a borrowed block, or the places in the region, back, and the pages of the library's file to the system. A
 * program that has unmapped its memory keeps what it has there now. */
static void let_go(const aviary_fpga *card, const struct block *block)
{
    if (card->function) {
        if (block->kind != BORROWED)
            reserve_again(block->place, block->length);
        return;
    }
    if (block->kind == FOREIGN)
        return;
    if (block->kind == OWN)
        reserve_again(block->place, block->length);
    else if (is_mapped(block->address, block->length, "rw-s", FILE_NAME))
        replace_pages(block->address, block->length, -1, 0);
    /* Files in memory have holes; the next user of the place gets zeros. */
    fallocate(card->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset_of(card, block), (off_t)block->length);
}

/* Puts the library's pages where the program has or gets them. */
static int show_block(const aviary_fpga *card, const struct block *block)
{
    uint64_t offset = offset_of(card, block);

    if (block->kind == BORROWED)
        return replace_pages(block->address, block->length, card->file, offset);
    if (mmap(block->address, block->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, card->file, (off_t)offset) == MAP_FAILED)
        return -errno;
    return 0;
}

/* For a function: memory of the program's own, which the kernel pins; a file's pages have to be there for that. */
static int map_for_function(aviary_fpga *card, struct block *block, int file, uint64_t offset, int writable)
{
    int flags = MAP_FIXED | (block->kind == FOREIGN ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    int protection = PROT_READ | (block->kind != FOREIGN || writable ? PROT_WRITE : 0);
    int error;

    block->memory = NULL;
    if (block->kind != BORROWED
        && mmap(block->place, block->length, protection, flags, block->kind == FOREIGN ? file : -1, (off_t)offset) == MAP_FAILED)
        return -errno;
    /* A hint: with large pages the virtual machine sends one message for each, and not 512. */
    if (block->kind == OWN)
        madvise(block->place, block->length, MADV_HUGEPAGE);
    error = fpga_function_map(card->function, block->kind == BORROWED ? block->address : block->place, (uintptr_t)block->place, block->length,
                              writable);
    if (error)
        let_go(card, block);
    return error;
}

/* Puts a file's pages where the program has or gets them, and tells the card. */
static int map_block(aviary_fpga *card, struct block *block, int file, uint64_t offset, unsigned flags)
{
    int writable = !(flags & AVIARY_FPGA_READ_ONLY), error;

    if (card->function)
        return map_for_function(card, block, file, offset, writable);
    if (block->kind != FOREIGN) {
        offset = offset_of(card, block);
        if (offset + block->length > card->file_bytes)
            return -ENOMEM;
    }
    /* The card knows the library's file once, also for memory that the accelerator may only read. */
    error = fpga_use_memory(card, file, offset + block->length, block->kind != FOREIGN || writable, &block->memory);
    if (error)
        return error;
    error = block->kind == FOREIGN ? 0 : show_block(card, block);
    if (error) {
        fpga_release_memory(card, block->memory);
        return error;
    }
    error = fpga_ask(card, (struct request){MAP, (uint32_t)writable, {(uintptr_t)block->place, block->length, offset, block->memory->id}},
                     -1, NULL);
    if (error) {
        let_go(card, block);
        fpga_release_memory(card, block->memory);
    }
    return error;
}

/* With the lock: a block for a file's pages. OWN blocks get their address here. */
static int map_locked(aviary_fpga *card, struct block wanted, int file, uint64_t offset, unsigned flags, struct block **made)
{
    struct block *block = malloc(sizeof *block), **link;
    int error;

    link = block ? gap(card, whole(wanted.length), &wanted.place) : NULL;
    if (!link) {
        free(block);
        return -ENOMEM;
    }
    if (wanted.kind == OWN)
        wanted.address = wanted.place;
    wanted.next = *link;
    *block = wanted;
    error = map_block(card, block, file, offset, flags);
    if (error) {
        free(block);
        return error;
    }
    *made = *link = block;
    return 0;
}

EXPORTED int aviary_fpga_map(aviary_fpga *card, void **memory, size_t bytes, unsigned flags, uint64_t *io_address)
{
    int existing = (flags & AVIARY_FPGA_EXISTING) != 0, error;
    struct block *block;
    size_t page = existing ? (size_t)sysconf(_SC_PAGESIZE) : HUGE_PAGE;
    size_t length = (bytes + page - 1) & ~(page - 1);

    if (!memory || bytes == 0 || flags & ~(unsigned)(AVIARY_FPGA_EXISTING | AVIARY_FPGA_READ_ONLY))
        return -EINVAL;
    if (existing && (bytes != length || (uintptr_t)*memory % page || (uintptr_t)*memory > UINTPTR_MAX - bytes))
        return -EINVAL;
    if (length < bytes || length > card->region_bytes)
        return -ENOMEM;
    if (existing && !is_mapped(*memory, length, "rw-p", NULL))
        return -EFAULT;
    pthread_mutex_lock(&card->lock);
    error = existing && overlaps(card->blocks, *memory, length) ? -EEXIST : own_file(card);
    if (!error)
        error = map_locked(card, (struct block){.length = length, .address = *memory, .kind = existing ? BORROWED : OWN}, card->file, 0,
                           flags, &block);
    pthread_mutex_unlock(&card->lock);
    if (error)
        return error;
    *memory = block->address;
    if (io_address)
        *io_address = (uintptr_t)block->place;
    return 0;
}

EXPORTED int aviary_fpga_map_file(aviary_fpga *card, int file, uint64_t offset, size_t bytes, unsigned flags, uint64_t *io_address)
{
    struct block *block;
    int error;

    if (!io_address || bytes == 0 || flags & ~(unsigned)AVIARY_FPGA_READ_ONLY)
        return -EINVAL;
    if (bytes > card->region_bytes)
        return -ENOMEM;
    pthread_mutex_lock(&card->lock);
    error = map_locked(card, (struct block){.length = bytes, .kind = FOREIGN}, file, offset, flags, &block);
    pthread_mutex_unlock(&card->lock);
    if (!error)
        *io_address = (uintptr_t)block->place;
    return error;
}

/* With the lock: ends the mapping to which a link leads, which may be none. */
static int unmap_locked(aviary_fpga *card, struct block **link)
{
    struct block *block = *link;
    int error = block ? fpga_ask(card, (struct request){UNMAP, 0, {(uintptr_t)block->place, block->length}}, -1, NULL) : -EINVAL;

    if (!error || (error == -E2BIG && card->function)) {
        *link = block->next;
        let_go(card, block);
        if (block->memory)
            fpga_release_memory(card, block->memory);
        free(block);
    }
    return error;
}

EXPORTED int aviary_fpga_unmap_file(aviary_fpga *card, uint64_t io_address)
{
    struct block **link;
    int error;

    pthread_mutex_lock(&card->lock);
    for (link = &card->blocks; *link && ((*link)->kind != FOREIGN || (uintptr_t)(*link)->place != io_address); link = &(*link)->next)
        ;
    error = unmap_locked(card, link);
    pthread_mutex_unlock(&card->lock);
    return error;
}

EXPORTED int aviary_fpga_unmap(aviary_fpga *card, void *memory)
{
    struct block **link;
    int error;

    if (!memory)
        return -EINVAL;
    pthread_mutex_lock(&card->lock);
    for (link = &card->blocks; *link && (*link)->address != memory; link = &(*link)->next)
        ;
    error = unmap_locked(card, link);
    pthread_mutex_unlock(&card->lock);
    return error;
}

EXPORTED void *aviary_fpga_malloc(aviary_fpga *card, size_t bytes)
{
    void *memory = NULL;
    int error = aviary_fpga_map(card, &memory, bytes, 0, NULL);

    errno = -error;
    return error ? NULL : memory;
}

EXPORTED void aviary_fpga_free(aviary_fpga *card, void *memory)
{
    if (memory)
        aviary_fpga_unmap(card, memory);
}

void fpga_return_gaps(aviary_fpga *card)
{
    char *from = card->reserved;
    const struct block *block;

    if (!card->reserved)
        return;
    for (block = card->blocks; block; block = block->next) {
        /* The first one is the library's own, for states of paused jobs. */
        if (block->kind != OWN || block == card->blocks)
            continue;
        munmap(from, (size_t)(block->place - from));
        from = block->place + whole(block->length);
    }
    munmap(from, (size_t)(card->reserved + card->reserved_bytes - from));
}

void fpga_drop_blocks(aviary_fpga *card)
{
    while (card->blocks) {
        struct block *block = card->blocks;
        card->blocks = block->next;
        if (block->kind == BORROWED)
            let_go(card, block);
        free(block);
    }
    while (card->memories) {
        struct memory *memory = card->memories;
        card->memories = memory->next;
        free(memory);
    }
}
