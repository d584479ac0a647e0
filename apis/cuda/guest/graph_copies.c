/* Copies of ordinary memory in graphs: the device copies from and to page-locked memory, and this process copies between
 * that and the application's memory, when a launch of the graph gets there (server/graph_halves.c). What the
 * application's memory holds then is copied, each time. */
#include "guest/functions.h"
#include "guest/graphs.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Page-locked memory for one side of one copy. */
struct block {
    char *memory;
    size_t bytes;
    /* The device knows it no longer once this context, or any other since, has ended. */
    CUcontext context;
    uint64_t epoch;
    struct block *next;
};

struct graph_copy {
    unsigned long long number;
    CUDA_MEMCPY3D box;
    unsigned int kinds;
    char *from, *to;
    struct block *from_block, *to_block;
    /* Set for a node of an executable graph: the copy ends with that graph. */
    CUgraphExec exec;
    CUgraphNode node;
    /* Another copy was set for the node since; launches that began before may still use this one. */
    int replaced;
    struct graph_copy *next;
};

enum { BUCKETS = 256 };
static struct graph_copy *copies[BUCKETS];
/* Blocks of ended copies, for later ones. */
static struct block *idle_blocks;
static size_t idle_bytes;
static unsigned long long last_number;
static pthread_mutex_t copies_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Blocks --------------------------------------------------------------------------------- */

static void free_block(struct block *block) {
    cuda_shared_free(block->memory, block->bytes);
    free(block);
}

/* More is given back when blocks are asked for next: the callback that ends a copy makes no calls. */
#define MOST_IDLE_BYTES ((size_t)64 << 20)

static struct block *take_idle(size_t bytes) {
    struct block *found = NULL, *surplus = NULL;
    CUcontext context = cuda_current_context();
    uint64_t epoch = cuda_functions_epoch();
    pthread_mutex_lock(&copies_lock);
    for (struct block **link = &idle_blocks; *link;) {
        struct block *block = *link;
        int fresh = block->context == context && block->epoch == epoch;
        int fits = fresh && !found && block->bytes >= bytes && block->bytes / 2 <= bytes;
        if (fresh && !fits && idle_bytes <= MOST_IDLE_BYTES) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        idle_bytes -= block->bytes;
        if (fits) {
            found = block;
        } else {
            block->next = surplus;
            surplus = block;
        }
    }
    pthread_mutex_unlock(&copies_lock);
    while (surplus) {
        struct block *next = surplus->next;
        free_block(surplus);
        surplus = next;
    }
    return found;
}

static struct block *take_block(size_t bytes) {
    size_t whole = cuda_whole_pages(bytes);
    struct block *block = whole < bytes ? NULL : take_idle(whole);
    void *memory = NULL;
    if (block || whole < bytes || !(block = calloc(1, sizeof *block)))
        return block;
    if (cuda_shared_alloc(&memory, whole, CU_MEMHOSTREGISTER_PORTABLE) != CUDA_SUCCESS) {
        free(block);
        return NULL;
    }
    *block = (struct block){memory, whole, cuda_current_context(), cuda_functions_epoch(), NULL};
    return block;
}

/* With the lock. */
static void put_idle(struct block *block) {
    if (!block)
        return;
    block->next = idle_blocks;
    idle_blocks = block;
    idle_bytes += block->bytes;
}

/* ---- Copies --------------------------------------------------------------------------------- */

static struct graph_copy **find_copy(unsigned long long number) {
    struct graph_copy **link = &copies[number % BUCKETS];
    while (*link && (*link)->number != number)
        link = &(*link)->next;
    return link;
}

/* With the lock. */
static void end_copy(struct graph_copy **link) {
    struct graph_copy *copy = *link;
    *link = copy->next;
    put_idle(copy->from_block);
    put_idle(copy->to_block);
    free(copy);
}

struct side {
    char *memory;
    size_t pitch, rows, x, y, z;
};

static void copy_box(const CUDA_MEMCPY3D *box, const struct side *to, const struct side *from) {
    for (size_t z = 0; z < box->Depth; z++)
        for (size_t y = 0; y < box->Height; y++)
            memcpy(to->memory + ((to->z + z) * to->rows + to->y + y) * to->pitch + to->x,
                   from->memory + ((from->z + z) * from->rows + from->y + y) * from->pitch + from->x, box->WidthInBytes);
}

/* A copy's memory in the application and its block have the same layout. */
static struct side source_side(const CUDA_MEMCPY3D *box, char *memory) {
    return (struct side){memory, box->srcPitch ? box->srcPitch : box->srcXInBytes + box->WidthInBytes,
                         box->srcHeight ? box->srcHeight : box->srcY + box->Height, box->srcXInBytes, box->srcY, box->srcZ};
}

static struct side target_side(const CUDA_MEMCPY3D *box, char *memory) {
    return (struct side){memory, box->dstPitch ? box->dstPitch : box->dstXInBytes + box->WidthInBytes,
                         box->dstHeight ? box->dstHeight : box->dstY + box->Height, box->dstXInBytes, box->dstY, box->dstZ};
}

/* Called when a launch of a graph gets to a copy, or nothing will any more. The graph keeps the copy until then. */
static void serve(unsigned int kind, unsigned long long number, void *data) {
    (void)data;
    pthread_mutex_lock(&copies_lock);
    struct graph_copy **link = find_copy(number), *copy = *link;
    if (copy && kind == AVIARY_HALF_END)
        end_copy(link);
    pthread_mutex_unlock(&copies_lock);
    if (!copy || !(copy->kinds & kind) || kind == AVIARY_HALF_END)
        return;
    if (kind == AVIARY_HALF_GATHER) {
        struct side block = source_side(&copy->box, copy->from_block->memory), own = source_side(&copy->box, copy->from);
        copy_box(&copy->box, &block, &own);
    } else {
        struct side block = target_side(&copy->box, copy->to_block->memory), own = target_side(&copy->box, copy->to);
        copy_box(&copy->box, &own, &block);
    }
}

/* Before the first copy of this process. */
static CUresult start_serving(void) {
    static int serving;
    if (__atomic_load_n(&serving, __ATOMIC_ACQUIRE))
        return CUDA_SUCCESS;
    CUresult status = aviaryServeHalves(serve, NULL);
    if (status == CUDA_SUCCESS)
        __atomic_store_n(&serving, 1, __ATOMIC_RELEASE);
    return status;
}

/* Sides of a copy as a graph needs them: memory that the device reaches, in the place of other memory of the host. `halves`
 * has no kinds where nothing had to be replaced. */
CUresult cuda_prepare_graph_copy(const CUDA_MEMCPY3D *wanted, CUDA_MEMCPY3D *copy, struct cuda_host_sides *sides,
                                 aviary_halves *halves) {
    *halves = (aviary_halves){0};
    cuda_split_copy(wanted, copy, sides);
    unsigned int kinds = (sides->from_bytes && !cuda_shared(sides->from, sides->from_bytes) ? AVIARY_HALF_GATHER : 0)
                         | (sides->to_bytes && !cuda_shared(sides->to, sides->to_bytes) ? AVIARY_HALF_SCATTER : 0);
    if (!kinds)
        return CUDA_SUCCESS;
    if ((kinds & AVIARY_HALF_GATHER && !cuda_is_readable((uintptr_t)sides->from, sides->from_bytes))
        || (kinds & AVIARY_HALF_SCATTER && !cuda_is_readable((uintptr_t)sides->to, sides->to_bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!cuda_shares_memory())
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult status = start_serving();
    struct graph_copy *made = status == CUDA_SUCCESS ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return status == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : status;
    made->box = *copy;
    made->kinds = kinds;
    made->from = sides->from;
    made->to = sides->to;
    if (kinds & AVIARY_HALF_GATHER)
        made->from_block = take_block(sides->from_bytes);
    if (kinds & AVIARY_HALF_SCATTER)
        made->to_block = take_block(sides->to_bytes);
    pthread_mutex_lock(&copies_lock);
    if ((kinds & AVIARY_HALF_GATHER && !made->from_block) || (kinds & AVIARY_HALF_SCATTER && !made->to_block)) {
        put_idle(made->from_block);
        put_idle(made->to_block);
        pthread_mutex_unlock(&copies_lock);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->number = ++last_number;
    made->next = copies[made->number % BUCKETS];
    copies[made->number % BUCKETS] = made;
    pthread_mutex_unlock(&copies_lock);
    *halves = (aviary_halves){.number = made->number, .from = (uintptr_t)made->from, .to = (uintptr_t)made->to, .kinds = kinds};
    if (made->from_block)
        sides->from = made->from_block->memory;
    if (made->to_block)
        sides->to = made->to_block->memory;
    return CUDA_SUCCESS;
}

/* Ends the copies of an executable graph that nothing uses any more: all, or those that were replaced. With the lock. */
static void end_exec_copies(CUgraphExec exec, int all) {
    for (int i = 0; i < BUCKETS; i++)
        for (struct graph_copy **link = &copies[i]; *link;)
            if ((*link)->exec == exec && (all || (*link)->replaced))
                end_copy(link);
            else
                link = &(*link)->next;
}

/* Marks what the new copy replaces; how many copies of the executable graph are replaced. With the lock. */
static unsigned int replace_copies(const struct graph_copy *made) {
    unsigned int replaced = 0;
    for (int i = 0; i < BUCKETS; i++)
        for (struct graph_copy *copy = copies[i]; copy; copy = copy->next)
            if (copy->exec == made->exec && copy != made) {
                copy->replaced |= copy->node == made->node;
                replaced += copy->replaced != 0;
            }
    return replaced;
}

/* After the message: a copy that was refused ends, one that was set in an executable graph ends with that, or some time after
 * it was replaced. */
void cuda_end_preparing(CUgraphExec exec, CUgraphNode node, const aviary_halves *halves, CUresult status) {
    enum { MOST_REPLACED = 16 };
    unsigned int replaced = 0;
    if (!halves->kinds)
        return;
    pthread_mutex_lock(&copies_lock);
    struct graph_copy **link = find_copy(halves->number);
    if (*link && status != CUDA_SUCCESS) {
        end_copy(link);
    } else if (*link && exec) {
        (*link)->exec = exec;
        (*link)->node = node;
        replaced = replace_copies(*link);
    }
    pthread_mutex_unlock(&copies_lock);
    /* Launches that use them are over then. */
    if (replaced <= MOST_REPLACED || cuCtxSynchronize() != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&copies_lock);
    end_exec_copies(exec, 0);
    pthread_mutex_unlock(&copies_lock);
}

/* After the executable graph is gone: its launches may still run. */
void cuda_end_exec_copies(CUgraphExec exec) {
    int any = 0;
    pthread_mutex_lock(&copies_lock);
    for (int i = 0; i < BUCKETS && !any; i++)
        for (const struct graph_copy *copy = copies[i]; copy && !any; copy = copy->next)
            any = copy->exec == exec;
    pthread_mutex_unlock(&copies_lock);
    if (!any || cuCtxSynchronize() != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&copies_lock);
    end_exec_copies(exec, 1);
    pthread_mutex_unlock(&copies_lock);
}

/* ---- Captures ------------------------------------------------------------------------------- */

static int captures(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return cuda_capturing() && cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* True if a stream captures a copy of memory of the host's that the device cannot look into. */
int cuda_captures_copy(const void *memory, size_t bytes, CUstream stream) {
    return bytes && cuda_capturing() && !cuda_shared(memory, bytes) && captures(stream);
}

int cuda_captures_host(CUstream stream) {
    return captures(stream);
}

int cuda_captures_box(const CUDA_MEMCPY3D *copy, CUstream stream) {
    CUDA_MEMCPY3D split;
    struct cuda_host_sides sides;
    if (!cuda_capturing())
        return 0;
    cuda_split_copy(copy, &split, &sides);
    int host = (sides.from_bytes && !cuda_shared(sides.from, sides.from_bytes))
               || (sides.to_bytes && !cuda_shared(sides.to, sides.to_bytes));
    return host && captures(stream);
}

CUresult cuda_capture_box(const CUDA_MEMCPY3D *wanted, CUstream stream) {
    CUDA_MEMCPY3D copy;
    struct cuda_host_sides sides;
    aviary_halves halves;
    CUresult status = cuda_prepare_graph_copy(wanted, &copy, &sides, &halves);
    if (status != CUDA_SUCCESS)
        return status;
    status = aviaryCaptureCopy(copy, sides.from, sides.from_bytes, sides.to, sides.to_bytes, stream, halves);
    cuda_end_preparing(NULL, NULL, &halves, status);
    return status;
}

/* A line of `bytes`: each side is the host's where the type says so. */
CUresult cuda_capture_line(CUmemorytype to_type, CUdeviceptr to, CUmemorytype from_type, CUdeviceptr from, size_t bytes,
                           CUstream stream) {
    CUDA_MEMCPY3D line = {.srcMemoryType = from_type, .srcHost = (const void *)(uintptr_t)from, .srcDevice = from,
                          .dstMemoryType = to_type, .dstHost = (void *)(uintptr_t)to, .dstDevice = to,
                          .WidthInBytes = bytes, .Height = 1, .Depth = 1};
    return cuda_capture_box(&line, stream);
}
