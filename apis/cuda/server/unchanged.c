/* Which pieces of device memory are what they were when they last left: their content need not be copied again, where the host still
 * has it. A kernel hashes them, which reads the device's memory many times faster than the bus carries it.
 *
 * 128 bits, of two sums that mix every word in two ways. Each step is a bijection of the sum, and of the word: a piece of which one word
 * of a thread has changed never has the same hash, and others by chance once in 2^128 pairs. The numbers are no secret: a program that
 * makes two contents with one hash gets its own older bytes back, and nobody else's.
 *
 * The kernel is no vendor's code and has to be right on every device: of each eviction one piece is hashed by the processor, too. */
#include "unchanged.h"
#include <stdlib.h>
#include <time.h>

enum { THREADS = 256, BATCH = 1024, STATE_BYTES = 16, SHARE_BYTES = THREADS * STATE_BYTES };
/* A device that needs longer for its first piece is no faster than its bus: a simulated one. */
#ifndef SLOW_NS
#define SLOW_NS 10000000
#endif
#define FIRST_A 0x9e3779b97f4a7c15u
#define FIRST_B 0xc2b2ae3d27d4eb4fu
#define MIX_A 0xff51afd7ed558ccdu
#define MIX_B 0xc4ceb9fe1a85ec53u
#define MIX_C 0xd6e8feb86659fd93u
#define MIX_D 0xa0761d6478bd642fu

/* Block b hashes the 4 MiB from offset b * 4 MiB on, as far as there are `bytes`; thread t of it every 256th 16 bytes from the t-th on,
 * whose two sums it leaves at `to`. */
static const char hash_code[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry aviary_hash(.param .u64 from, .param .u64 bytes, .param .u64 to)\n"
    "{\n"
    ".reg .b32 %r<4>;\n.reg .b64 %rd<32>;\n.reg .pred %p<2>;\n"
    "ld.param.u64 %rd1, [from];\n"
    "ld.param.u64 %rd2, [bytes];\n"
    "ld.param.u64 %rd3, [to];\n"
    "mov.u32 %r1, %ctaid.x;\n"
    "mov.u32 %r2, %tid.x;\n"
    "cvt.u64.u32 %rd4, %r1;\n"
    "cvt.u64.u32 %rd5, %r2;\n"
    /* The end of the piece, and this thread's place in it. */
    "shl.b64 %rd6, %rd4, 22;\n"
    "add.u64 %rd7, %rd6, 4194304;\n"
    "min.u64 %rd7, %rd7, %rd2;\n"
    "shl.b64 %rd8, %rd5, 4;\n"
    "add.u64 %rd9, %rd6, %rd8;\n"
    /* Where its sums go. */
    "shl.b64 %rd10, %rd4, 12;\n"
    "add.u64 %rd10, %rd10, %rd8;\n"
    "add.u64 %rd10, %rd10, %rd3;\n"
    "mov.u64 %rd20, 0xff51afd7ed558ccd;\n"
    "mov.u64 %rd21, 0xc4ceb9fe1a85ec53;\n"
    "mov.u64 %rd22, 0xd6e8feb86659fd93;\n"
    "mov.u64 %rd23, 0xa0761d6478bd642f;\n"
    "mov.u64 %rd11, 0x9e3779b97f4a7c15;\n"
    "mov.u64 %rd12, 0xc2b2ae3d27d4eb4f;\n"
    "AGAIN:\n"
    "setp.ge.u64 %p1, %rd9, %rd7;\n"
    "@%p1 bra DONE;\n"
    "add.u64 %rd13, %rd1, %rd9;\n"
    "ld.global.v2.u64 {%rd14, %rd15}, [%rd13];\n"
    "xor.b64 %rd11, %rd11, %rd14;\n"
    "mul.lo.u64 %rd11, %rd11, %rd20;\n"
    "shr.u64 %rd16, %rd11, 32;\n"
    "xor.b64 %rd11, %rd11, %rd16;\n"
    "xor.b64 %rd11, %rd11, %rd15;\n"
    "mul.lo.u64 %rd11, %rd11, %rd21;\n"
    "shr.u64 %rd16, %rd11, 29;\n"
    "xor.b64 %rd11, %rd11, %rd16;\n"
    "xor.b64 %rd12, %rd12, %rd15;\n"
    "mul.lo.u64 %rd12, %rd12, %rd22;\n"
    "shr.u64 %rd16, %rd12, 31;\n"
    "xor.b64 %rd12, %rd12, %rd16;\n"
    "xor.b64 %rd12, %rd12, %rd14;\n"
    "mul.lo.u64 %rd12, %rd12, %rd23;\n"
    "shr.u64 %rd16, %rd12, 30;\n"
    "xor.b64 %rd12, %rd12, %rd16;\n"
    "add.u64 %rd9, %rd9, 4096;\n"
    "bra AGAIN;\n"
    "DONE:\n"
    "st.global.v2.u64 [%rd10], {%rd11, %rd12};\n"
    "ret;\n"
    "}\n";

/* The same, of two words. */
static void mix(struct cuda_hash *hash, uint64_t first, uint64_t second) {
    uint64_t a = hash->a, b = hash->b;
    a = (a ^ first) * MIX_A;
    a ^= a >> 32;
    a = (a ^ second) * MIX_B;
    a ^= a >> 29;
    b = (b ^ second) * MIX_C;
    b ^= b >> 31;
    b = (b ^ first) * MIX_D;
    b ^= b >> 30;
    *hash = (struct cuda_hash){a, b};
}

/* Of a piece, out of the sums of its threads. */
static struct cuda_hash folded(const uint64_t *sums) {
    struct cuda_hash hash = {FIRST_A, FIRST_B};
    for (size_t thread = 0; thread < THREADS; thread++)
        mix(&hash, sums[2 * thread], sums[2 * thread + 1]);
    return hash;
}

/* What the kernel must find. */
static struct cuda_hash hash_of(const uint64_t *words, size_t bytes) {
    uint64_t sums[2 * THREADS];
    for (size_t thread = 0; thread < THREADS; thread++) {
        struct cuda_hash hash = {FIRST_A, FIRST_B};
        for (size_t at = thread * STATE_BYTES; at < bytes; at += SHARE_BYTES)
            mix(&hash, words[at / 8], words[at / 8 + 1]);
        sums[2 * thread] = hash.a;
        sums[2 * thread + 1] = hash.b;
    }
    return folded(sums);
}

size_t cuda_pieces_of(const struct cuda_moved_part *parts, size_t count) {
    size_t pieces = 0;
    for (size_t i = 0; i < count; i++)
        pieces += (size_t)((parts[i].bytes + CUDA_PIECE_BYTES - 1) / CUDA_PIECE_BYTES);
    return pieces;
}

unsigned char *cuda_pieces_unchanged(const struct cuda_hashed *now, const struct cuda_hashed *earlier, const unsigned char *host_has) {
    size_t pieces = now->hashes && earlier->hashes ? cuda_pieces_of(now->parts, now->count) : 0, number = 0, old = 0;
    unsigned char *same = pieces ? calloc(pieces, 1) : NULL;
    uint64_t at = 0, old_at = 0;
    for (size_t i = 0, j = 0; same && i < now->count && j < earlier->count;) {
        const struct cuda_moved_part *part = &now->parts[i], *was = &earlier->parts[j];
        if (at == old_at && part->pointer == was->pointer && part->bytes == was->bytes)
            for (size_t k = 0; k < cuda_pieces_of(part, 1); k++)
                same[number + k] = host_has[old + k] && now->hashes[number + k].a == earlier->hashes[old + k].a
                                   && now->hashes[number + k].b == earlier->hashes[old + k].b;
        /* Whichever ends first; both, if they end at one place. */
        uint64_t end = at + part->bytes, old_end = old_at + was->bytes;
        if (end <= old_end)
            at = end, number += cuda_pieces_of(part, 1), i++;
        if (old_end <= end)
            old_at = old_end, old += cuda_pieces_of(was, 1), j++;
    }
    return same;
}

uint64_t cuda_bytes_of_same(const struct cuda_moved_part *parts, size_t count, const unsigned char *same) {
    uint64_t bytes = 0;
    size_t number = 0;
    for (size_t i = 0; i < count; i++)
        for (uint64_t at = 0; at < parts[i].bytes; at += CUDA_PIECE_BYTES, number++)
            if (same[number])
                bytes += parts[i].bytes - at < CUDA_PIECE_BYTES ? parts[i].bytes - at : CUDA_PIECE_BYTES;
    return bytes;
}

/* What hashing needs, in the current context. */
struct hasher {
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    uint64_t *sums;
    CUdeviceptr to;
};

static void end_hasher(struct hasher *hasher) {
    if (hasher->stream)
        cuStreamDestroy_v2(hasher->stream);
    if (hasher->sums)
        cuMemFreeHost(hasher->sums);
    if (hasher->module)
        cuModuleUnload(hasher->module);
}

static int begin_hasher(struct hasher *hasher) {
    void *sums = NULL;
    *hasher = (struct hasher){0};
    int made = cuModuleLoadData(&hasher->module, hash_code) == CUDA_SUCCESS
               && cuModuleGetFunction(&hasher->kernel, hasher->module, "aviary_hash") == CUDA_SUCCESS
               && cuMemHostAlloc(&sums, (size_t)BATCH * SHARE_BYTES, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS;
    hasher->sums = sums;
    made = made && cuMemHostGetDevicePointer_v2(&hasher->to, sums, 0) == CUDA_SUCCESS
           && cuStreamCreate(&hasher->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
    if (!made)
        end_hasher(hasher);
    return made;
}

/* Pieces that were launched, up to `until` of all: their hashes. 0: the device has not done it. */
static int fetch(struct hasher *hasher, struct cuda_hash *hashes, size_t from, size_t until) {
    if (cuStreamSynchronize(hasher->stream) != CUDA_SUCCESS)
        return 0;
    for (size_t piece = from; piece < until; piece++)
        hashes[piece] = folded(hasher->sums + (piece - from) * 2 * THREADS);
    return 1;
}

static int launch(struct hasher *hasher, CUdeviceptr from, uint64_t bytes, size_t pieces, size_t place) {
    CUdeviceptr to = hasher->to + place * SHARE_BYTES;
    void *parameters[] = {&from, &bytes, &to};
    return cuLaunchKernel(hasher->kernel, (unsigned)pieces, 1, 1, THREADS, 1, 1, 0, hasher->stream, parameters, NULL) == CUDA_SUCCESS;
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* All pieces of all parts, in their order. */
static int hash_all(struct hasher *hasher, const struct cuda_moved_part *parts, size_t count, struct cuda_hash *hashes) {
    size_t fetched = 0, launched = 0;
    /* The first one alone, which tells how fast the device is. */
    size_t room = 1;
    int64_t begun = now_ns();
    for (size_t i = 0; i < count; i++) {
        uint64_t left = parts[i].bytes;
        CUdeviceptr at = parts[i].pointer;
        if (left % STATE_BYTES || at % STATE_BYTES)
            return 0;
        while (left) {
            size_t pieces = (size_t)((left + CUDA_PIECE_BYTES - 1) / CUDA_PIECE_BYTES), fit = room - (launched - fetched);
            pieces = pieces < fit ? pieces : fit;
            uint64_t bytes = (uint64_t)pieces * CUDA_PIECE_BYTES;
            bytes = bytes < left ? bytes : left;
            if (!launch(hasher, at, bytes, pieces, launched - fetched))
                return 0;
            launched += pieces, at += bytes, left -= bytes;
            if (launched - fetched < room)
                continue;
            if (!fetch(hasher, hashes, fetched, launched) || (room == 1 && now_ns() - begun > SLOW_NS))
                return 0;
            fetched = launched, room = BATCH;
        }
    }
    return fetch(hasher, hashes, fetched, launched);
}

/* The device has hashed wrongly, slowly, or not at all. */
static int is_useless;

struct cuda_hash *cuda_hash_parts(CUcontext context, const struct cuda_moved_part *parts, size_t count) {
    size_t pieces = cuda_pieces_of(parts, count);
    struct cuda_hash *hashes = pieces && !is_useless ? calloc(pieces, sizeof *hashes) : NULL;
    struct hasher hasher;
    if (!hashes || !cuda_enter_context(context)) {
        free(hashes);
        return NULL;
    }
    int done = begin_hasher(&hasher);
    if (done) {
        done = hash_all(&hasher, parts, count, hashes);
        end_hasher(&hasher);
    }
    cuda_leave_context();
    if (done)
        return hashes;
    is_useless = 1;
    free(hashes);
    return NULL;
}

int cuda_hash_is_right(const struct cuda_hash *hash, const void *content, size_t bytes) {
    struct cuda_hash found = hash_of(content, bytes);
    int is_right = found.a == hash->a && found.b == hash->b;
    is_useless |= !is_right;
    return is_right;
}
