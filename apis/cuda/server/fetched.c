/* What other processes offer: fetched, and imported. */
#include "pieces.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of a list: an API server has no more files. A process of the tenant that answers slowly delays the call by so many seconds, and by as
 * long as one answer may take. */
enum { MOST_LISTED = 8192, MOST_SECONDS = 10 };

/* A descriptor that the caller closes; -1: there is no such offer. */
int cuda_fetch_offer(const aviary_shared_name *name, uint64_t *note) {
    aviary_offer_name offered;
    memcpy(&offered, name, sizeof offered);
    return aviary_fetch(&offered, note);
}

__thread struct cuda_fetched cuda_fetched;

void cuda_drop_fetched(void) {
    if (cuda_fetched.there)
        close(cuda_fetched.descriptor);
    cuda_fetched.there = 0;
}

/* Fetches it: where the device memory lies that importing it adds. */
uint64_t cuda_ordinal_of_offer(const aviary_shared_name *name) {
    uint64_t note = 0;
    /* Of a call that was refused. */
    cuda_drop_fetched();
    if (!name)
        return 0;
    cuda_fetched.descriptor = cuda_fetch_offer(name, &note);
    cuda_fetched.there = cuda_fetched.descriptor >= 0;
    if (note == CUDA_OFFERED_EVENT)
        cuda_drop_fetched();
    cuda_fetched.bytes = note & CUDA_OFFERED_BYTES;
    cuda_fetched.is_list = (note & CUDA_OFFERED_LIST) != 0;
    return cuda_fetched.there ? cuda_ordinal_of_tag((unsigned int)(note >> CUDA_OFFERED_BYTES_BITS), &cuda_fetched.device) : 0;
}

/* How much that is. */
uint64_t cuda_fetched_bytes(void) {
    return cuda_fetched.there ? cuda_fetched.bytes : 0;
}

static time_t seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void close_all(const int *descriptors, size_t count) {
    for (size_t i = 0; i < count; i++)
        close(descriptors[i]);
}

/* Fetches all that a list names, which another process of the tenant has written: how many, in an array that the caller frees; 0: it is
 * none, one of them is there no longer, or that takes too long. */
static size_t fetch_list(int list, int **descriptors) {
    struct stat file;
    aviary_offer_name name;
    size_t count = fstat(list, &file) == 0 && file.st_size > 0 ? (size_t)file.st_size / sizeof name : 0, fetched = 0;
    *descriptors = count && count <= MOST_LISTED ? calloc(count, sizeof **descriptors) : NULL;
    time_t until = seconds_now() + MOST_SECONDS;
    for (; *descriptors && fetched < count && seconds_now() <= until; fetched++) {
        uint64_t note = 0;
        /* The offset is shared with whoever else has it. */
        if (pread(list, &name, sizeof name, (off_t)(fetched * sizeof name)) != (ssize_t)sizeof name)
            break;
        (*descriptors)[fetched] = aviary_fetch(&name, &note);
        if ((*descriptors)[fetched] < 0)
            break;
    }
    if (*descriptors && fetched == count)
        return count;
    close_all(*descriptors, fetched);
    return 0;
}

/* Where something else than memory was offered, the driver says so. */
CUresult cuda_import_fetched(struct cuda_memory *memory) {
    int *listed = NULL;
    size_t count = !cuda_fetched.there ? 0 : cuda_fetched.is_list ? fetch_list(cuda_fetched.descriptor, &listed) : 1;
    const int *descriptors = cuda_fetched.is_list ? listed : &cuda_fetched.descriptor;
    CUresult status = count ? cuda_import_memory(memory, cuda_fetched.bytes, descriptors, count) : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        close_all(listed, listed ? count : 0);
    else if (!cuda_fetched.is_list)
        cuda_fetched.there = 0;
    free(listed);
    cuda_drop_fetched();
    return status;
}
