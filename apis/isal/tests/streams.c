/* Random streams: streams FIRST COUNT. Levels, flushes, wrappers, sizes of pieces in and out, input in one piece or not, structs
 * that are copied, moved or put back in the middle of a stream. A line for each: what it was, how long the stream is, its
 * checksum, and whether it is what it was made from. */
#include <isa-l.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The library looks at bytes before a piece that has memory of its own, which are always the same here. */
enum { MOST = 300000, BEFORE = 40000 };
static uint8_t source[MOST], packed[4 * MOST + 100000], rest[4 * MOST + 100000], back[MOST + 1];
static uint64_t state;

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return n ? (uint32_t)(state >> 33) % n : 0;
}
/* Small and large numbers are as likely. */
static uint32_t size_up_to(uint32_t most) {
    uint32_t size = 1u << below(18);
    size += below(size);
    return size < most ? size : most;
}

struct run {
    uint32_t level, flush, bytes, largest_in, largest_out, gzip;
    int apart, small_level_buf;
    size_t produced;
};

static void fill(uint32_t bytes) {
    uint32_t kind = below(4), period = 1 + below(5000);
    for (uint32_t i = 0; i < bytes; i++)
        source[i] = (uint8_t)(kind == 0   ? below(256)
                              : kind == 1 ? (i * i >> 7) % 61 + (i % 13 == 0 ? i : 0)
                              : kind == 2 ? (i >= period ? source[i - period] + (uint32_t)(below(97) == 0) : below(256))
                                          : (below(50) ? 'a' + i % 7 : below(256)));
}

/* A part of the input: in place, or in memory of its own that is gone later. */
static uint8_t *piece(const struct run *run, uint32_t at, uint32_t bytes, void **own) {
    free(*own);
    *own = NULL;
    if (!run->apart)
        return source + at;
    uint8_t *memory = malloc(BEFORE + bytes);
    if (!memory)
        exit(2);
    for (uint32_t i = 0; i < BEFORE; i++)
        memory[i] = (uint8_t)(i * 2654435761u >> 13);
    memcpy(memory + BEFORE, source + at, bytes);
    *own = memory;
    return memory + BEFORE;
}

static uint32_t level_bytes(const struct run *run) {
    static const uint32_t usual[] = {0, ISAL_DEF_LVL1_DEFAULT, ISAL_DEF_LVL2_DEFAULT, ISAL_DEF_LVL3_DEFAULT};
    static const uint32_t least[] = {0, ISAL_DEF_LVL1_MIN, ISAL_DEF_LVL2_MIN, ISAL_DEF_LVL3_MIN};
    return run->small_level_buf ? least[run->level] : usual[run->level];
}

struct input {
    uint32_t at;
    void *own;
};

/* Calls until `calls` are made, or the stream has ended (1). Output goes to `to`. */
static int go_on(const struct run *run, struct isal_zstream *z, struct input *in, uint8_t *to, uint32_t calls) {
    while (calls--) {
        if (!z->avail_in && in->at < run->bytes) {
            uint32_t bytes = size_up_to(run->largest_in);
            bytes = bytes < run->bytes - in->at ? bytes : run->bytes - in->at;
            z->next_in = piece(run, in->at, bytes, &in->own);
            z->avail_in = bytes;
            in->at += bytes;
        }
        z->end_of_stream = in->at == run->bytes;
        z->flush = run->flush == 3 ? below(3) : run->flush;
        z->next_out = to + z->total_out;
        z->avail_out = size_up_to(run->largest_out);
        if (isal_deflate(z) != COMP_OK)
            exit(3);
        if (z->internal_state.state == ZSTATE_END)
            return 1;
    }
    return 0;
}

static void compress_once(struct run *run, char *how) {
    struct isal_zstream *z = calloc(1, sizeof *z), *other = malloc(sizeof *other);
    struct input in = {0, NULL};
    uint32_t bytes = level_bytes(run);
    uint8_t *level_buf = bytes ? calloc(1, bytes) : NULL, *saved = bytes ? malloc(bytes) : NULL;
    if (!z || !other || (bytes && (!level_buf || !saved)))
        exit(2);
    isal_deflate_init(z);
    z->level = run->level;
    z->level_buf = level_buf;
    z->level_buf_size = bytes;
    z->gzip_flag = run->gzip;
    *how = 'p';
    int over = go_on(run, z, &in, packed, 1 + below(6));
    switch (over || run->apart ? 0 : below(4)) {
    case 1: /* it moves */
        memcpy(other, z, sizeof *z);
        memset(z, 0x5a, sizeof *z);
        free(z);
        z = other;
        other = NULL;
        *how = 'm';
        break;
    case 2: { /* it is put back after some calls */
        struct input then = {in.at, NULL};
        uint64_t random = state;
        memcpy(other, z, sizeof *z);
        if (saved)
            memcpy(saved, level_buf, bytes);
        go_on(run, z, &in, rest, 1 + below(4));
        memcpy(z, other, sizeof *z);
        if (saved)
            memcpy(level_buf, saved, bytes);
        in.at = then.at;
        state = random;
        *how = 'b';
        break;
    }
    case 3: /* the copy is another stream, used before or after */
        if (!run->level) {
            struct input ahead = {in.at, NULL};
            uint64_t random = state;
            memcpy(other, z, sizeof *z);
            memcpy(rest, packed, z->total_out);
            while (!go_on(run, z, &ahead, rest, 50)) {}
            state = random;
            uint32_t first = z->total_out;
            struct isal_zstream *swap = z;
            z = other;
            other = swap;
            while (!go_on(run, z, &in, packed, 50)) {}
            if (first != z->total_out || memcmp(rest, packed, first) != 0)
                *how = 'X';
            else
                *how = 'c';
        }
    }
    while (z->internal_state.state != ZSTATE_END)
        over = go_on(run, z, &in, packed, 50);
    run->produced = z->total_out;
    free(in.own);
    free(z);
    free(other);
    free(level_buf);
    free(saved);
}

/* Decompresses in pieces, with a state that is copied once. */
static int decompress(const struct run *run, uint32_t *got) {
    struct inflate_state *s = calloc(1, sizeof *s), *copy = malloc(sizeof *copy);
    uint32_t at = 0, copied = below(6), calls = 0, idle = 0;
    int status = ISAL_DECOMP_OK;
    if (!s || !copy)
        exit(2);
    isal_inflate_init(s);
    s->crc_flag = run->gzip == IGZIP_GZIP ? ISAL_GZIP : run->gzip == IGZIP_ZLIB ? ISAL_ZLIB : ISAL_DEFLATE;
    s->avail_in = 0;
    while (s->block_state != ISAL_BLOCK_FINISH && status == ISAL_DECOMP_OK && idle < 4) {
        if (!s->avail_in && at < run->produced) {
            uint32_t bytes = size_up_to(run->largest_out);
            s->next_in = packed + at;
            s->avail_in = bytes < run->produced - at ? bytes : (uint32_t)run->produced - at;
            at += s->avail_in;
        }
        uint32_t room = size_up_to(run->largest_in), in_before = s->avail_in, out_before = s->total_out;
        s->next_out = back + s->total_out;
        s->avail_out = room < sizeof back - s->total_out ? room : (uint32_t)(sizeof back - s->total_out);
        if (calls++ == copied) {
            memcpy(copy, s, sizeof *s);
            struct inflate_state *swap = s;
            s = copy;
            copy = swap;
        }
        status = isal_inflate(s);
        idle = s->avail_in == in_before && s->total_out == out_before ? idle + 1 : 0;
    }
    *got = s->total_out;
    free(s);
    free(copy);
    return status;
}

int main(int count, char **arguments) {
    uint32_t first = count > 1 ? (uint32_t)atoi(arguments[1]) : 0, runs = count > 2 ? (uint32_t)atoi(arguments[2]) : 1;
    for (uint32_t n = first; n < first + runs; n++) {
        static const uint16_t wrappers[] = {IGZIP_DEFLATE, IGZIP_GZIP, IGZIP_ZLIB};
        char how;
        uint32_t got = 0;
        state = n * 0x9e3779b97f4a7c15u + 1;
        below(1);
        struct run run = {.level = below(4), .flush = below(4), .bytes = 1 + below(below(4) ? 40000 : MOST),
                          .largest_in = size_up_to(MOST), .largest_out = 1 + size_up_to(MOST),
                          .gzip = wrappers[below(3)], .apart = below(3) == 0, .small_level_buf = below(4) == 0};
        /* There ISA-L 2.30 ends programs and writes wrong streams by itself: at level 3, at others if the kind of flush changes,
         * if pieces are large or lie apart, or with the least memory. */
        if (run.level && run.flush == 3)
            run.flush = FULL_FLUSH;
        if (run.level == 3 && run.flush == FULL_FLUSH)
            run.level = 2;
        if (run.level && run.flush == FULL_FLUSH)
            run.apart = run.small_level_buf = 0;
        if (run.level && run.flush == FULL_FLUSH && run.largest_in > 32768)
            run.largest_in = 32768;
        /* Not too many calls. */
        if (run.largest_in < run.bytes / 200)
            run.largest_in = run.bytes / 200;
        if (run.largest_out < run.bytes / 200 + 1)
            run.largest_out = run.bytes / 200 + 1;
        /* What an earlier stream has left changes nothing. */
        memset(source, 0, sizeof source);
        memset(packed, 0, sizeof packed);
        memset(rest, 0, sizeof rest);
        fill(run.bytes);
        compress_once(&run, &how);
        int status = decompress(&run, &got);
        printf("%u level %u flush %u wrapper %u bytes %u in %u out %u %s %c: %zu %08x inflate %d %s\n", n, run.level, run.flush,
               run.gzip, run.bytes, run.largest_in, run.largest_out, run.apart ? "apart" : "whole", how, run.produced,
               crc32_gzip_refl(0, packed, run.produced), status,
               got == run.bytes && memcmp(source, back, got) == 0 ? "equal" : "CORRUPT");
        fflush(stdout);
    }
    return 0;
}
