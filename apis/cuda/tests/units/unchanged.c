/* Pieces of device memory are hashed on the device as the processor hashes them, and every change is seen. */
#include "../driver/common.h"
#include "../../server/unchanged.h"

enum { PARTS = 3 };
static const size_t bytes_of[PARTS] = {CUDA_PIECE_BYTES + 4096, 65536, 16};

/* All is done in the one context of this program. */
int cuda_enter_context(CUcontext context)
{
    (void)context;
    return 1;
}

void cuda_leave_context(void)
{
}

uint64_t cuda_context_serial(CUcontext context)
{
    return context != NULL;
}

static size_t kept_buffers;

void aviary_keeps_buffers(size_t bytes, void (*give_back)(void))
{
    kept_buffers = bytes;
    (void)give_back;
}

static int equal(struct cuda_hash one, struct cuda_hash other)
{
    return one.a == other.a && one.b == other.b;
}

/* A piece is copied out again if it has changed, or lies elsewhere; `host` has what was there before. */
static void copy_changed(struct cuda_moved_part *parts, const struct cuda_hash *was, const struct cuda_hash *is)
{
    size_t bytes = (size_t)cuda_bytes_of_parts(parts, PARTS);
    struct cuda_hashed now = {parts, PARTS, (struct cuda_hash *)is}, earlier = {parts, PARTS, (struct cuda_hash *)was};
    struct cuda_moved_part shorter[PARTS] = {parts[0], parts[2], parts[1]};
    /* Of all four pieces; of all but the third. */
    const unsigned char all[] = {1, 1, 1, 1}, some_of_them[] = {1, 1, 0, 1};
    unsigned char *same = cuda_pieces_unchanged(&now, &earlier, all), *none = NULL, *some;
    char *host = malloc(bytes);

    memset(host, 0, bytes);
    MUST(cuda_copy_out(parts, PARTS, host, same));
    printf("bytes: %d\n", cuda_bytes_of_same(parts, PARTS, same) == bytes - CUDA_PIECE_BYTES);
    printf("unchanged: %d%d%d%d, of which nothing is copied: %d, others are: %d\n", same[0], same[1], same[2], same[3],
           !memchr(host + CUDA_PIECE_BYTES, 1, 4096) && !host[CUDA_PIECE_BYTES], host[CUDA_PIECE_BYTES / 2] != 0);
    cuda_tell_copy_buffers();
    printf("buffers are kept: %d", kept_buffers > 0);
    cuda_drop_copy_buffers();
    cuda_tell_copy_buffers();
    printf(", and given back: %d\n", kept_buffers == 0);
    some = cuda_pieces_unchanged(&now, &earlier, some_of_them);
    printf("of which the host has some: %d%d%d%d\n", some[0], some[1], some[2], some[3]);
    free(some);
    earlier.hashes = NULL;
    none = cuda_pieces_unchanged(&now, &earlier, all);
    /* Behind a part that has another length nothing lies where it did. */
    earlier = (struct cuda_hashed){shorter, PARTS, (struct cuda_hash *)was};
    some = cuda_pieces_unchanged(&now, &earlier, all);
    printf("without hashes: %d, of other parts: %d%d%d%d\n", none != NULL, some[0], some[1], some[2], some[3]);
    free(some);
    free(same);
    free(host);
}

int main(void)
{
    CUcontext context = start();
    struct cuda_moved_part parts[PARTS];
    struct cuda_hash *first, *second;
    unsigned char *content = malloc(bytes_of[0]);
    uint64_t random = 1;

    for (int i = 0; i < PARTS; i++) {
        CUdeviceptr at;
        MUST(cuMemAlloc(&at, bytes_of[i]));
        for (size_t k = 0; k < bytes_of[i]; k++)
            content[k] = (unsigned char)((random = random * 6364136223846793005u + 1442695040888963407u) >> 56);
        MUST(cuMemcpyHtoD(at, content, bytes_of[i]));
        parts[i] = (struct cuda_moved_part){context, at, bytes_of[i], 0};
    }
    printf("pieces: %zu\n", cuda_pieces_of(parts, PARTS));
    first = cuda_hash_parts(context, parts, PARTS);
    if (!first) {
        puts("the device does not hash");
        return 1;
    }
    /* The last part's content is there still. */
    printf("as the processor: %d\n", cuda_hash_is_right(&first[3], content, bytes_of[2]));
    MUST(cuMemcpyDtoH(content, parts[0].pointer, bytes_of[0]));
    printf("as the processor: %d, %d\n", cuda_hash_is_right(&first[0], content, CUDA_PIECE_BYTES),
           cuda_hash_is_right(&first[1], content + CUDA_PIECE_BYTES, 4096));
    /* One bit of each of some words: the pieces that they are in differ, and no others. */
    for (size_t at = 3; at < bytes_of[0]; at += 1000003) {
        unsigned char was = content[at], is = was ^ (unsigned char)(1u << at % 8);
        MUST(cuMemcpyHtoD(parts[0].pointer + at, &is, 1));
        second = cuda_hash_parts(context, parts, PARTS);
        if (!second || equal(first[0], second[0]) != (at >= CUDA_PIECE_BYTES) || equal(first[1], second[1]) != (at < CUDA_PIECE_BYTES)
            || !equal(first[2], second[2]) || !equal(first[3], second[3]))
            printf("a change at %zu is not seen\n", at);
        free(second);
        MUST(cuMemcpyHtoD(parts[0].pointer + at, &was, 1));
    }
    MUST(cuMemsetD8(parts[0].pointer + CUDA_PIECE_BYTES / 2, 7, 1));
    second = cuda_hash_parts(context, parts, PARTS);
    if (second)
        copy_changed(parts, first, second);
    free(second);
    MUST(cuMemcpyHtoD(parts[0].pointer, content, CUDA_PIECE_BYTES));
    second = cuda_hash_parts(context, parts, PARTS);
    printf("the same again: %d\n", second && equal(first[0], second[0]));
    free(second);
    free(first);
    free(content);
    puts("ok unchanged");
    return 0;
}
