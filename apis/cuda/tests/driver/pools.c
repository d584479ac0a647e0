/* Memory that is allocated and freed in the order of streams: nobody has any of it before the stream that freed it is done with it. */
#include "common.h"

#include <unistd.h>

enum { STREAMS = 4, STEPS = 3000, LIVE = 24, MOST = 1 << 16 };

static uint64_t state = 88172645463325252u;

static unsigned below(unsigned end)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 32) % end;
}

/* ---- Numbers -------------------------------------------------------------------------------- */

static cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = 0;

    MUST(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void numbers(CUmemoryPool pool, CUstream stream)
{
    cuuint64_t all = UINT64_MAX, none = 0;
    CUdeviceptr memory[3];

    for (int i = 0; i < 3; i++)
        MUST(cuMemAllocFromPoolAsync(&memory[i], 3 << 20, pool, stream));
    printf("used %llu\n", (unsigned long long)number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CHECK(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 9 << 20);
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    for (int i = 0; i < 3; i++)
        MUST(cuMemFreeAsync(memory[i], stream));
    MUST(cuStreamSynchronize(stream));
    printf("used %llu of at most %llu\n", (unsigned long long)number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
           (unsigned long long)number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    MUST(cuMemPoolTrimTo(pool, 0));
    printf("reserved %llu after trimming\n", (unsigned long long)number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none));
    printf("at most %llu since\n", (unsigned long long)number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
    MUST(cuMemAllocFromPoolAsync(&memory[0], 3 << 20, pool, stream));
    MUST(cuMemFreeAsync(memory[0], stream));
    MUST(cuStreamSynchronize(stream));
    printf("reserved %llu after a wait\n", (unsigned long long)number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    TELL(cuMemFreeAsync(memory[0], stream));
    TELL(cuMemAllocAsync(&memory[0], 0, stream));
    TELL(cuMemAllocAsync(&memory[0], (size_t)1 << 60, stream));
}

/* ---- Order ----------------------------------------------------------------------------------- */

static void wait_for_gate(void *gate)
{
    while (!__atomic_load_n((int *)gate, __ATOMIC_ACQUIRE))
        usleep(100);
}

/* What one stream has freed behind work that is not done is not another's, nor the program's by another function. */
static void not_yet_free(CUstream first, CUstream second)
{
    static unsigned values[MOST];
    CUdeviceptr memory, others[4];
    int gate = 0;
    unsigned wrong = 0;

    MUST(cuMemAllocAsync(&memory, sizeof(values), first));
    MUST(cuLaunchHostFunc(first, wait_for_gate, &gate));
    MUST(cuMemsetD32Async(memory, 1, MOST, first));
    MUST(cuMemFreeAsync(memory, first));
    for (int i = 0; i < 3; i++)
        MUST(cuMemAllocAsync(&others[i], sizeof(values), second));
    MUST(cuMemAlloc(&others[3], sizeof(values)));
    for (int i = 0; i < 4; i++)
        MUST(cuMemsetD32Async(others[i], 2, MOST, second));
    MUST(cuStreamSynchronize(second));
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    MUST(cuStreamSynchronize(first));
    for (int i = 0; i < 4; i++) {
        MUST(cuMemcpyDtoHAsync(values, others[i], sizeof(values), second));
        MUST(cuStreamSynchronize(second));
        for (unsigned j = 0; j < MOST; j++)
            wrong += values[j] != 2;
    }
    for (int i = 0; i < 3; i++)
        MUST(cuMemFreeAsync(others[i], second));
    MUST(cuMemFree(others[3]));
    printf("freed behind work that is not done: %u wrong\n", wrong);
}

/* The same stream may have it at once: its own order keeps both apart. */
static void own_order(CUstream stream)
{
    static unsigned values[MOST];
    CUdeviceptr before, after, copy;
    int gate = 0;
    unsigned wrong = 0;

    MUST(cuMemAlloc(&copy, sizeof(values)));
    for (unsigned round = 0; round < 50; round++) {
        MUST(cuMemAllocAsync(&before, sizeof(values), stream));
        if (round == 0)
            MUST(cuLaunchHostFunc(stream, wait_for_gate, &gate));
        MUST(cuMemsetD32Async(before, round, MOST, stream));
        MUST(cuMemcpyDtoDAsync(copy, before, sizeof(values), stream));
        MUST(cuMemFreeAsync(before, stream));
        MUST(cuMemAllocAsync(&after, sizeof(values) / 2, stream));
        MUST(cuMemsetD32Async(after, ~round, MOST / 2, stream));
        MUST(cuMemFreeAsync(after, stream));
    }
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    MUST(cuMemcpyDtoHAsync(values, copy, sizeof(values), stream));
    MUST(cuStreamSynchronize(stream));
    for (unsigned j = 0; j < MOST; j++)
        wrong += values[j] != 49;
    MUST(cuMemFree(copy));
    printf("in the order of one stream: %u wrong\n", wrong);
}

/* ---- At random -------------------------------------------------------------------------------- */

struct piece {
    CUdeviceptr memory;
    unsigned words, value;
    int stream;
};

static unsigned check(const struct piece *piece, CUstream stream)
{
    static unsigned values[MOST];
    unsigned wrong = 0;

    MUST(cuMemcpyDtoHAsync(values, piece->memory, 4ul * piece->words, stream));
    MUST(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < piece->words; i++)
        wrong += values[i] != piece->value;
    return wrong;
}

/* Pieces live in one stream's order each; a wrong word is one that somebody else had, too. */
static void at_random(CUstream *streams, CUmemoryPool pool)
{
    static struct piece pieces[LIVE];
    unsigned wrong = 0, freed = 0;

    for (unsigned step = 0; step < STEPS; step++) {
        struct piece *piece = &pieces[below(LIVE)];
        if (piece->memory) {
            CUstream stream = streams[piece->stream];
            if (below(4) == 0)
                wrong += check(piece, stream);
            MUST(cuMemFreeAsync(piece->memory, stream));
            piece->memory = 0;
            freed++;
            continue;
        }
        *piece = (struct piece){.words = 1 + below(below(3) ? 2000 : MOST), .value = step, .stream = below(STREAMS)};
        if (below(2))
            MUST(cuMemAllocAsync(&piece->memory, 4ul * piece->words, streams[piece->stream]));
        else
            MUST(cuMemAllocFromPoolAsync(&piece->memory, 4ul * piece->words, pool, streams[piece->stream]));
        MUST(cuMemsetD32Async(piece->memory, piece->value, piece->words, streams[piece->stream]));
        if (below(100) == 0) {
            CUstream *gone = &streams[below(STREAMS)];
            MUST(cuStreamDestroy(*gone));
            MUST(cuStreamCreate(gone, CU_STREAM_NON_BLOCKING));
            MUST(cuCtxSynchronize());
            for (int i = 0; i < LIVE; i++)
                if (pieces[i].memory)
                    wrong += check(&pieces[i], NULL);
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (pieces[i].memory) {
            wrong += check(&pieces[i], streams[pieces[i].stream]);
            MUST(cuMemFree(pieces[i].memory));
        }
    printf("at random: %u freed in order, %u words wrong\n", freed, wrong);
}

int main(void)
{
    CUstream streams[STREAMS];
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUdeviceptr left;

    start();
    for (int i = 0; i < STREAMS; i++)
        MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    MUST(cuMemPoolCreate(&pool, &properties));
    numbers(pool, streams[0]);
    not_yet_free(streams[0], streams[1]);
    own_order(streams[2]);
    at_random(streams, pool);
    MUST(cuMemAllocFromPoolAsync(&left, 1000, pool, streams[0]));
    MUST(cuMemPoolDestroy(pool));
    MUST(cuMemsetD8Async(left, 7, 1000, streams[0]));
    MUST(cuMemFreeAsync(left, streams[0]));
    MUST(cuCtxSynchronize());
    printf("ok pools\n");
    return 0;
}
