/* Files that the card knows: each once, whatever is mapped of it. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

/* A file may have grown since the card was told of it: then it is told again, under another number. */
static struct memory *known(const aviary_fpga *card, const struct stat *file, uint64_t length, int writable)
{
    struct memory *memory;

    for (memory = card->memories; memory; memory = memory->next)
        if (memory->device == file->st_dev && memory->inode == file->st_ino && memory->length >= length
            && memory->writable >= writable)
            break;
    return memory;
}

int fpga_use_memory(aviary_fpga *card, int file, uint64_t length, int writable, struct memory **memory)
{
    struct memory *made;
    struct stat state;
    int error;

    if (fstat(file, &state) != 0)
        return -errno;
    *memory = known(card, &state, length, writable);
    if (*memory) {
        (*memory)->uses++;
        return 0;
    }
    /* What is too short the card refuses. */
    if ((uint64_t)state.st_size > length)
        length = (uint64_t)state.st_size & ~(uint64_t)4095;
    made = malloc(sizeof *made);
    if (!made)
        return -ENOMEM;
    *made = (struct memory){card->next_memory++, state.st_dev, state.st_ino, length, writable, 1, card->memories};
    error = fpga_ask(card, (struct request){MEMORY, (uint32_t)writable, {made->id, length}}, file, NULL);
    if (error) {
        free(made);
        return error;
    }
    card->memories = *memory = made;
    return 0;
}

void fpga_release_memory(aviary_fpga *card, struct memory *memory)
{
    struct memory **link = &card->memories;

    if (--memory->uses)
        return;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    fpga_ask(card, (struct request){FORGET, 0, {memory->id}}, -1, NULL);
    free(memory);
}
