/* cuMemHostRegister: the pages of the application's memory become pages of the arena (page_exchange.c), which the API server maps at the
 * same addresses and registers with the driver. The device then uses them in place, and the host's pointer is the device's. Copies name
 * the arena's own address of these pages, which is page-locked as that of cuMemHostAlloc's memory is.
 *
 * Only pages that belong to a registration as a whole are taken: what of the program's or its libraries' else is in them would be shared
 * with children of fork until these have made their copies. */
#include "guest/registered_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MOST_EXTENTS: each is looked for among all mappings when the process forks. */
enum { PAGE = 4096, MOST_EXTENTS = 256 };
/* Of the arena's 64 GiB: page-locked memory, copies and calls need some, too. */
static const size_t MOST_BYTES = (size_t)32 << 30;

/* Memory of the arena, page-locked as a whole, with the pages of several extents in the order of their addresses. */
struct block {
    char *arena;
    size_t bytes;
    unsigned int extents;
    /* Some of its pages are still mapped where the program had them: nobody else gets the block. */
    int lost;
};

struct extent {
    char *at, *arena;
    size_t bytes;
    struct block *block;
    unsigned int registrations;
    /* While this process forks: what of it the child needs. */
    struct cuda_page_runs forked;
};

struct registration {
    uintptr_t base;
    size_t bytes;
    struct registration *next;
};

/* Of extents those that follow each other in memory need not do so here. `changing` is held while either list changes, with calls in
 * between; `lists` only where it is read or written. */
static struct extent **extents;
static size_t extent_count, extent_room, bytes_in_place;
static struct registration *registrations;
static int registration_count;
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t lists = PTHREAD_RWLOCK_INITIALIZER;

/* ---- Questions ------------------------------------------------------------------------------- */

static const struct registration *find_registration(uintptr_t address, size_t bytes) {
    const struct registration *r = registrations;
    while (r && (address < r->base || address - r->base >= r->bytes || bytes > r->bytes - (address - r->base)))
        r = r->next;
    return r;
}

/* The first extent with any page of these bytes; NULL: none. */
static struct extent *find_extent(uintptr_t address, size_t bytes) {
    struct extent *found = NULL;
    for (size_t i = 0; i < extent_count; i++) {
        struct extent *e = extents[i];
        if ((uintptr_t)e->at < address + bytes && (uintptr_t)e->at + e->bytes > address && (!found || e->at < found->at))
            found = e;
    }
    return found;
}

/* True if the device uses all of it where it is. */
int cuda_is_in_place(const void *memory, size_t bytes) {
    if (!__atomic_load_n(&registration_count, __ATOMIC_ACQUIRE))
        return 0;
    pthread_rwlock_rdlock(&lists);
    int found = find_registration((uintptr_t)memory, bytes) != NULL;
    pthread_rwlock_unlock(&lists);
    return found;
}

static char *find_in_one_piece(uintptr_t address, size_t bytes) {
    const struct extent *e = find_extent(address, 1);
    char *found = e ? e->arena + (address - (uintptr_t)e->at) : NULL;
    for (uintptr_t at = address; e && at < address + bytes; at = (uintptr_t)e->at + e->bytes)
        if (!(e = find_extent(at, 1)) || e->arena + (at - (uintptr_t)e->at) != found + (at - address))
            return NULL;
    return found;
}

/* The arena's address of registered memory; NULL: it is none, or not in one piece there. */
void *cuda_in_arena(const void *memory, size_t bytes) {
    char *found = NULL;
    if (!bytes || !__atomic_load_n(&registration_count, __ATOMIC_ACQUIRE))
        return NULL;
    pthread_rwlock_rdlock(&lists);
    if (find_registration((uintptr_t)memory, bytes))
        found = find_in_one_piece((uintptr_t)memory, bytes);
    pthread_rwlock_unlock(&lists);
    return found;
}

/* ---- Extents --------------------------------------------------------------------------------- */

static int add_extent(struct extent *made) {
    pthread_rwlock_wrlock(&lists);
    if (extent_count == extent_room) {
        size_t room = extent_room ? 2 * extent_room : 64;
        struct extent **larger = realloc(extents, room * sizeof *larger);
        if (!larger) {
            pthread_rwlock_unlock(&lists);
            return 0;
        }
        extents = larger;
        extent_room = room;
    }
    extents[extent_count++] = made;
    pthread_rwlock_unlock(&lists);
    return 1;
}

static void remove_extent(const struct extent *ended) {
    pthread_rwlock_wrlock(&lists);
    for (size_t i = 0; i < extent_count; i++)
        if (extents[i] == ended) {
            extents[i] = extents[--extent_count];
            break;
        }
    pthread_rwlock_unlock(&lists);
}

/* The program's pages are its own again, with their contents, as far as they still are there. Pages that cannot be given back stay the
 * arena's for as long as the process lives, and are nobody else's. */
static void return_pages(struct extent *ended) {
    struct cuda_page_runs left;
    int returned = cuda_find_page_runs(ended->at, ended->arena, ended->bytes, &left);
    for (size_t i = 0; returned && i < left.count; i++)
        returned = cuda_pages_from_arena(ended->at, &left.runs[i]);
    if (!returned || left.elsewhere) {
        aviary_log("%zu bytes at %p that were registered stay in memory that is shared with the API server", ended->bytes, (void *)ended->at);
        ended->block->lost = 1;
    }
    free(left.runs);
}

/* An extent that no registration counts any longer, and with the last one of it the block. */
static void end_extent(struct extent *ended) {
    struct block *block = ended->block;
    int last = --block->extents == 0;
    if (last) {
        /* The driver waits for what uses it. */
        CUresult status = aviaryHostUnregister(block->arena, block->bytes);
        block->lost |= status != CUDA_SUCCESS && status != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    block->lost |= aviaryDisown((CUdeviceptr)ended->at, ended->bytes) != CUDA_SUCCESS;
    return_pages(ended);
    remove_extent(ended);
    free(ended);
    if (!last)
        return;
    bytes_in_place -= block->bytes;
    if (!block->lost)
        aviary_zerocopy_free(block->arena);
    free(block);
}

static const char *const NO_MEMORY = "there is no memory for it";

/* NULL, or why the pages from `at` on cannot be an extent. */
static const char *make_extent(struct block *block, uintptr_t at, char *arena, size_t bytes) {
    struct extent *made = calloc(1, sizeof *made);
    if (!made)
        return NO_MEMORY;
    *made = (struct extent){.at = (char *)at, .arena = arena, .bytes = bytes, .block = block};
    const char *why = aviaryAdopt(arena, bytes, at) == CUDA_SUCCESS ? NULL : "the API server has other memory at these addresses";
    if (!why && !add_extent(made)) {
        aviaryDisown(at, bytes);
        why = NO_MEMORY;
    }
    if (why)
        free(made);
    else
        block->extents++;
    return why;
}

/* The extents of a block whose pages are as they were, which the driver does not know. */
static void drop_extents(struct block *block) {
    for (size_t i = extent_count; i-- > 0;) {
        struct extent *e = extents[i];
        if (e->block == block) {
            aviaryDisown((CUdeviceptr)e->at, e->bytes);
            remove_extent(e);
            free(e);
        }
    }
    aviary_zerocopy_free(block->arena);
    bytes_in_place -= block->bytes;
    free(block);
}

/* Private pages become an extent that no registration counts yet. NULL, or why not: then there is none, or one that nobody will count. */
static const char *make_pages_shared(uintptr_t at, size_t bytes) {
    if (extent_count >= MOST_EXTENTS || bytes > MOST_BYTES - bytes_in_place)
        return "256 registrations, or 32 GiB, are in place already";
    struct block *block = calloc(1, sizeof *block);
    char *arena = block ? aviary_zerocopy_alloc_uninitialized(bytes) : NULL;
    if (!arena) {
        free(block);
        return NO_MEMORY;
    }
    *block = (struct block){.arena = arena, .bytes = bytes};
    bytes_in_place += bytes;
    const char *why = make_extent(block, at, arena, bytes);
    if (!why && !cuda_pages_to_arena((char *)at, arena, bytes))
        why = "the kernel does not exchange its pages";
    if (why) {
        drop_extents(block);
        return why;
    }
    /* Not before, as the driver would have all pages of the arena beside those of the program. */
    return aviaryHostRegister(arena, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS ? NULL : "the driver does not page-lock it";
}

static int is_complete(const struct extent *e) {
    struct cuda_page_runs found;
    size_t there = 0;
    if (!cuda_find_page_runs(e->at, e->arena, e->bytes, &found))
        return 0;
    for (size_t i = 0; i < found.count; i++)
        there += found.runs[i].bytes;
    free(found.runs);
    return there == e->bytes && !found.elsewhere;
}

/* What lies at `at`: an extent, or pages up to the next one. Returns where that ends. */
static uintptr_t next_part(uintptr_t at, uintptr_t end, struct extent **extent) {
    struct extent *e = find_extent(at, end - at);
    *extent = e && (uintptr_t)e->at <= at ? e : NULL;
    uintptr_t part = *extent ? (uintptr_t)e->at + e->bytes : e ? (uintptr_t)e->at : end;
    return part < end ? part : end;
}

static const char *check_pages(uintptr_t first, uintptr_t end) {
    struct extent *e;
    for (uintptr_t at = first, next; at < end; at = next) {
        next = next_part(at, end, &e);
        if (e ? !is_complete(e) : !cuda_pages_are_private(at, next - at))
            return "it is not all private memory of the program's that can be read and written";
    }
    return NULL;
}

/* One registration more or less counts the extents from `first` to `end`; those that none counts end. */
static void count_extents(uintptr_t first, uintptr_t end, int change) {
    struct extent *e;
    for (uintptr_t at = first, next; at < end; at = next) {
        next = next_part(at, end, &e);
        if (!e)
            continue;
        e->registrations += (unsigned int)change;
        if (!e->registrations)
            end_extent(e);
    }
}

static const char *take_pages(uintptr_t first, uintptr_t end) {
    struct extent *e;
    const char *why = check_pages(first, end);
    for (uintptr_t at = first, next; at < end && !why; at = next) {
        next = next_part(at, end, &e);
        if (!e)
            why = make_pages_shared(at, next - at);
    }
    if (why)
        count_extents(first, end, 0);
    else
        count_extents(first, end, 1);
    return why;
}

/* ---- Children of fork ------------------------------------------------------------------------ */

/* Natively a child has copies of registered memory as it was at the fork; here it makes them, while the thread that forked waits. What
 * other threads write meanwhile may be in the copies or not. -1: there is nothing to copy. */
static int copied[2] = {-1, -1};

static void before_fork(void) {
    pthread_mutex_lock(&changing);
    pthread_rwlock_wrlock(&lists);
    if (!extent_count || pipe2(copied, O_CLOEXEC) != 0)
        return;
    for (size_t i = 0; i < extent_count; i++) {
        struct extent *e = extents[i];
        if (!cuda_find_page_runs(e->at, e->arena, e->bytes, &e->forked))
            continue;
        for (size_t n = 0; n < e->forked.count; n++)
            cuda_pages_follow_forks(e->at, &e->forked.runs[n], 1);
    }
}

static void in_parent(void) {
    char byte;
    if (copied[0] >= 0) {
        close(copied[1]);
        while (read(copied[0], &byte, 1) < 0 && errno == EINTR)
            ;
        close(copied[0]);
        copied[0] = copied[1] = -1;
    }
    for (size_t i = 0; i < extent_count; i++) {
        struct extent *e = extents[i];
        for (size_t n = 0; n < e->forked.count; n++)
            cuda_pages_follow_forks(e->at, &e->forked.runs[n], 0);
        free(e->forked.runs);
        e->forked = (struct cuda_page_runs){0};
    }
    pthread_rwlock_unlock(&lists);
    pthread_mutex_unlock(&changing);
}

/* The child has no registrations; the parent's lists are not its to free. */
static void in_child(void) {
    for (size_t i = 0; i < extent_count; i++)
        for (size_t n = 0; n < extents[i]->forked.count; n++)
            cuda_pages_copied_in_child(extents[i]->at, &extents[i]->forked.runs[n]);
    if (copied[0] >= 0) {
        while (write(copied[1], "", 1) < 0 && errno == EINTR)
            ;
        close(copied[0]);
        close(copied[1]);
        copied[0] = copied[1] = -1;
    }
    extents = NULL;
    extent_count = extent_room = 0;
    registrations = NULL;
    registration_count = 0;
    pthread_rwlock_init(&lists, NULL);
    pthread_mutex_init(&changing, NULL);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- Registrations --------------------------------------------------------------------------- */

static void page_bounds(uintptr_t base, size_t bytes, uintptr_t *first, uintptr_t *end) {
    *first = base & -(uintptr_t)PAGE;
    *end = (base + bytes + PAGE - 1) & -(uintptr_t)PAGE;
}

/* Of a registration only copies work: said for the first one. */
static void say_why(const void *memory, size_t bytes, const char *why) {
    static int said;
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        aviary_log("cuMemHostRegister of %zu bytes at %p: the device cannot use the memory in place, copies of it work: %s", bytes, memory, why);
}

/* True if nothing else is in its pages: whole pages, or all of a block that malloc has mapped for itself. In front of such a one glibc
 * has two words: how far behind the beginning of a page they are, and the length with a bit that says so. */
static int owns_its_pages(uintptr_t base, size_t bytes) {
    enum { FLAGS = 7, IS_MAPPED = 2 };
    size_t words[2], lead = base % PAGE;
    if (!lead && bytes % PAGE == 0)
        return 1;
    if (lead < sizeof words)
        return 0;
    memcpy(words, (const void *)(base - sizeof words), sizeof words);
    uintptr_t end = (base + bytes + PAGE - 1) & -(uintptr_t)PAGE;
    return words[0] == lead - sizeof words && (words[1] & FLAGS) == IS_MAPPED && base - sizeof words + (words[1] & ~(size_t)FLAGS) == end;
}

static CUresult not_in_place(struct registration *made, const char *why) {
    say_why((const void *)made->base, made->bytes, why);
    free(made);
    return CUDA_SUCCESS;
}

static CUresult register_pages(struct registration *made, unsigned int flags) {
    uintptr_t first, end;
    page_bounds(made->base, made->bytes, &first, &end);
    const char *why = end <= first                               ? NO_MEMORY
                      : !owns_its_pages(made->base, made->bytes) ? "other memory is in its first or its last page"
                                                                 : take_pages(first, end);
    if (why)
        return not_in_place(made, why);
    CUresult status = aviaryHostRegisterAt(made->base, made->bytes, flags & CU_MEMHOSTREGISTER_PORTABLE);
    if (status != CUDA_SUCCESS) {
        count_extents(first, end, -1);
        if (status == CUDA_ERROR_NOT_SUPPORTED)
            return not_in_place(made, "the driver has no pointer for it that is the host's");
        free(made);
        return status;
    }
    pthread_rwlock_wrlock(&lists);
    made->next = registrations;
    registrations = made;
    __atomic_add_fetch(&registration_count, 1, __ATOMIC_RELEASE);
    pthread_rwlock_unlock(&lists);
    return CUDA_SUCCESS;
}

/* Has the device use memory in place if that is possible; otherwise nothing changes, and cuda_is_in_place says so. An error is the
 * driver's. */
CUresult cuda_register_in_place(void *memory, size_t bytes, unsigned int flags) {
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    if (!cuda_pages_can_be_exchanged()) {
        say_why(memory, bytes, cuda_shares_memory() ? "the kernel has no userfaultfd for it, or the API server has other memory at the addresses"
                                                    : "the API server shares no memory with the program");
        return CUDA_SUCCESS;
    }
    struct registration *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct registration){.base = (uintptr_t)memory, .bytes = bytes};
    pthread_once(&watched, watch_forks);
    pthread_mutex_lock(&changing);
    CUresult status = register_pages(made, flags);
    pthread_mutex_unlock(&changing);
    return status;
}

static struct registration *remove_registration(uintptr_t base) {
    pthread_rwlock_wrlock(&lists);
    struct registration **link = &registrations, *ended;
    while (*link && (*link)->base != base)
        link = &(*link)->next;
    ended = *link;
    if (ended) {
        *link = ended->next;
        __atomic_sub_fetch(&registration_count, 1, __ATOMIC_RELEASE);
    }
    pthread_rwlock_unlock(&lists);
    return ended;
}

/* The driver's answer. A registration that ended with its context has its pages returned as well; after any other error nothing has
 * changed. */
CUresult cuda_unregister_in_place(void *memory) {
    pthread_mutex_lock(&changing);
    CUresult status = aviaryHostUnregisterAt((CUdeviceptr)memory);
    if (status == CUDA_SUCCESS || status == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
        struct registration *ended = remove_registration((uintptr_t)memory);
        uintptr_t first = 0, end = 0;
        if (ended)
            page_bounds(ended->base, ended->bytes, &first, &end);
        count_extents(first, end, -1);
        free(ended);
    }
    pthread_mutex_unlock(&changing);
    return status;
}
