/* The places of `__managed__` variables in this process, how they are found, and those of little page-locked memory that
 * kernels look into. What makes both sides equal is in mirrored_memory.c. */
#include "guest/mirrored_memory.h"
#include "guest/ranges.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { VARIABLE_PAGE = 4096 };

/* ---- The memory in this process -------------------------------------------------------------- */

static CUdeviceptr page_of(CUdeviceptr address) {
    return address & -(CUdeviceptr)VARIABLE_PAGE;
}

/* True if another variable has a part of that page. */
static int in_use_by_others(CUdeviceptr page, const struct managed_variable *but) {
    for (const struct managed_variable *v = cuda_variables; v; v = v->next)
        if (v != but && page_of(v->base) <= page && page < v->base + v->bytes)
            return 1;
    return 0;
}

static void unmap_variable(const struct managed_variable *variable, CUdeviceptr end) {
    for (CUdeviceptr page = page_of(variable->base); page < end; page += VARIABLE_PAGE)
        if (!in_use_by_others(page, variable))
            munmap((void *)page, VARIABLE_PAGE);
}

/* Page by page: neighbours may be there already. */
static int map_variable(const struct managed_variable *variable) {
    for (CUdeviceptr page = page_of(variable->base); page < variable->base + variable->bytes; page += VARIABLE_PAGE) {
        if (in_use_by_others(page, variable))
            continue;
        void *at = mmap((void *)page, VARIABLE_PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (at != (void *)page) {
            if (at != MAP_FAILED)
                munmap(at, VARIABLE_PAGE);
            unmap_variable(variable, page);
            return 0;
        }
    }
    return 1;
}

static void drop_variable(struct managed_variable *variable) {
    free(variable->twin);
    free(variable->fetched);
    free(variable);
}

/* With the lock. */
static CUresult make_variable(CUdeviceptr base, size_t bytes, const void *owner) {
    struct managed_variable *variable = calloc(1, sizeof *variable);
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    if (variable) {
        *variable = (struct managed_variable){base, bytes, owner, malloc(bytes), malloc(bytes), NULL};
        if (variable->twin && variable->fetched)
            status = aviaryReadVariable(base, variable->twin, bytes);
    }
    if (status == CUDA_SUCCESS && !map_variable(variable)) {
        aviary_log("a managed variable lies at %#llx, where this process has other memory: it cannot be used", (unsigned long long)base);
        status = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (status != CUDA_SUCCESS) {
        if (variable)
            drop_variable(variable);
        return status;
    }
    memcpy((void *)base, variable->twin, bytes);
    cuda_add_variable(variable);
    cuda_note_host((void *)base, bytes, CU_MEM_ATTACH_GLOBAL, HOST_VARIABLE);
    return CUDA_SUCCESS;
}

/* With the lock. */
static void end_variable(struct managed_variable **link) {
    struct managed_variable *ended = *link;
    size_t bytes;
    *link = ended->next;
    cuda_take_host((void *)ended->base, HOST_VARIABLE, &bytes);
    unmap_variable(ended, ended->base + ended->bytes);
    drop_variable(ended);
}

/* The module or the library has ended. */
void cuda_end_variables(const void *owner) {
    if (!cuda_has_variables())
        return;
    pthread_mutex_lock(&cuda_variables_lock);
    for (struct managed_variable **link = &cuda_variables; *link;)
        if ((*link)->owner == owner)
            end_variable(link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&cuda_variables_lock);
}

/* ---- Page-locked memory ------------------------------------------------------------------------ */

enum { MAPPED_MOST = 65536, TRIES = 8 };
/* Far from where Linux puts anything by itself: in the API server drivers have reserved much of that. */
static const CUdeviceptr MAPPED_PLACES = 0x610000000000, MAPPED_PLACES_BYTES = (CUdeviceptr)1 << 43;

/* The next place to try. Each process begins elsewhere: many may have the same API server. */
static void *next_place(void) {
    static CUdeviceptr start, taken;
    CUdeviceptr known = __atomic_load_n(&start, __ATOMIC_RELAXED);
    if (!known) {
        CUdeviceptr random = 0;
        if (syscall(SYS_getrandom, &random, sizeof random, 0) != sizeof random)
            random = (CUdeviceptr)getpid() << 20;
        random = (random % MAPPED_PLACES_BYTES & -(CUdeviceptr)MAPPED_MOST) | MAPPED_MOST;
        if (__atomic_compare_exchange_n(&start, &known, random, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            known = random;
    }
    CUdeviceptr at = known + __atomic_fetch_add(&taken, MAPPED_MOST, __ATOMIC_RELAXED);
    return (void *)(MAPPED_PLACES + at % MAPPED_PLACES_BYTES);
}

/* A place that is free here and there. */
static CUresult find_place(void **place, size_t bytes) {
    CUresult status = CUDA_ERROR_ALREADY_MAPPED;
    for (int i = 0; i < TRIES && status == CUDA_ERROR_ALREADY_MAPPED; i++) {
        void *next = next_place();
        void *here = mmap(next, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (here == MAP_FAILED)
            continue;
        status = here == next ? aviaryMapHost((CUdeviceptr)here, bytes) : CUDA_ERROR_ALREADY_MAPPED;
        if (status == CUDA_SUCCESS)
            *place = here;
        else
            munmap(here, bytes);
    }
    return status == CUDA_ERROR_ALREADY_MAPPED ? CUDA_ERROR_OUT_OF_MEMORY : status;
}

/* Zeros. `bytes` are whole pages. More than a little would take too long to compare at each launch. */
CUresult cuda_mapped_alloc(void **memory, size_t bytes) {
    if (bytes > MAPPED_MOST)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct managed_variable *variable = calloc(1, sizeof *variable);
    void *place = NULL;
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    if (variable) {
        *variable = (struct managed_variable){.bytes = bytes, .twin = calloc(1, bytes), .fetched = malloc(bytes)};
        if (variable->twin && variable->fetched)
            status = find_place(&place, bytes);
    }
    if (status != CUDA_SUCCESS) {
        if (variable)
            drop_variable(variable);
        return status;
    }
    variable->base = (CUdeviceptr)place;
    pthread_mutex_lock(&cuda_variables_lock);
    cuda_add_variable(variable);
    pthread_mutex_unlock(&cuda_variables_lock);
    *memory = place;
    return CUDA_SUCCESS;
}

/* Memory of cuda_mapped_alloc. */
CUresult cuda_mapped_free(void *memory) {
    pthread_mutex_lock(&cuda_variables_lock);
    struct managed_variable **link = cuda_find_variable((CUdeviceptr)memory), *ended = *link;
    if (ended)
        *link = ended->next;
    pthread_mutex_unlock(&cuda_variables_lock);
    if (!ended)
        return CUDA_ERROR_INVALID_VALUE;
    /* The driver waits for what uses it. */
    CUresult status = aviaryUnmapHost(ended->base);
    munmap(memory, ended->bytes);
    drop_variable(ended);
    return status;
}

/* ---- Finding them ----------------------------------------------------------------------------- */

static CUresult open_variable(CUdeviceptr base, size_t bytes, const void *owner) {
    CUresult status = CUDA_SUCCESS;
    if (!base || !bytes)
        return status;
    pthread_mutex_lock(&cuda_variables_lock);
    struct managed_variable **link = cuda_find_variable(base);
    if (*link && (*link)->bytes != bytes)
        end_variable(link); /* gone with its context */
    struct managed_variable *found = *cuda_find_variable(base);
    if (!found) {
        status = make_variable(base, bytes, owner);
    } else if (found->owner != owner) {
        /* The same by another name, of a library's module, or another in the place of one that has gone with its context:
         * changes that cannot be sent any more are lost. */
        cuda_send_changes(found);
        cuda_fetch_changes(found);
        found->owner = owner;
    }
    pthread_mutex_unlock(&cuda_variables_lock);
    return status;
}

/* The variable that was found, if `status` is good: a managed variable gets its place here, any other is the device's. */
static CUresult found_variable(CUresult status, CUdeviceptr *pointer, size_t *bytes, CUdeviceptr base, size_t size, int managed,
                               const void *owner) {
    if (status == CUDA_SUCCESS && managed)
        status = open_variable(base, size, owner);
    if (status != CUDA_SUCCESS)
        return status;
    if (!managed)
        cuda_note_global(&base, &size);
    if (pointer)
        *pointer = base;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

CUresult cuda_library_managed(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    CUdeviceptr base = 0;
    size_t size = 0;
    CUresult status = aviaryLibraryManaged(library, name, &base, &size);
    return found_variable(status, pointer, bytes, base, size, 1, library);
}

CUresult cuda_library_global(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    CUdeviceptr base = 0;
    size_t size = 0;
    int managed = 0;
    CUresult status = aviaryLibraryGlobal(library, name, &base, &size, &managed);
    return found_variable(status, pointer, bytes, base, size, managed, library);
}

CUresult cuda_module_global(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
    CUdeviceptr base = 0;
    size_t size = 0;
    int managed = 0;
    CUresult status = aviaryModuleGlobal(module, name, &base, &size, &managed);
    return found_variable(status, pointer, bytes, base, size, managed, module);
}
