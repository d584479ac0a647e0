/* ISA-L's streams, erasure codes, checksums and RAID against what the definitions say; native and remoted outputs are
 * compared line by line.
 * codes               all of it
 * codes remoted       what only a remoted library has: copies of streams, streams without memory, refused calls
 * codes limited       under a limit of one byte of stream memory: no stream works, and the calls say so
 * codes time FILE     nanoseconds in which FILE is compressed at level 1, and decompressed, a MiB at a time
 * codes hold FILE     one stream over FILE in buffers of malloc; then it waits on standard input, and goes on */
#include <isa-l.h>
#include <time.h>

#include "check.h"

#define BYTES (1u << 20)

static uint8_t plain[BYTES], packed[2 * BYTES], back[BYTES];

/* Text with repetitions, then noise. */
static void fill(void) {
    static const char *words[] = {"stream ", "state ", "cursor ", "library ", "of ", "the ", "guest\n", "0x1f "};
    uint32_t random = 1;
    size_t at = 0;
    while (at < BYTES * 3 / 4) {
        random = random * 1103515245 + 12345;
        const char *word = words[random >> 29];
        for (; *word && at < BYTES; word++)
            plain[at++] = (uint8_t)*word;
    }
    for (; at < BYTES; at++) {
        random = random * 1103515245 + 12345;
        plain[at] = (uint8_t)(random >> 16);
    }
}

static uint32_t sum_of(const uint8_t *bytes, size_t count) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

/* Everything through one stream, in pieces. Returns the bytes written. */
static size_t deflate(struct isal_zstream *stream, size_t bytes, uint32_t piece_in, uint32_t piece_out) {
    size_t read = 0, written = 0;
    stream->avail_in = 0;
    do {
        if (!stream->avail_in && read < bytes) {
            stream->next_in = plain + read;
            stream->avail_in = piece_in < bytes - read ? piece_in : (uint32_t)(bytes - read);
            read += stream->avail_in;
            stream->end_of_stream = read == bytes;
        }
        stream->next_out = packed + written;
        stream->avail_out = piece_out < sizeof packed - written ? piece_out : (uint32_t)(sizeof packed - written);
        if (isal_deflate(stream) != COMP_OK)
            return 0;
        written = (size_t)(stream->next_out - packed);
    } while (stream->avail_out == 0 || read < bytes || stream->avail_in);
    return written == stream->total_out && stream->total_in == bytes ? written : 0;
}

static int inflate(struct inflate_state *state, size_t bytes, uint32_t piece_in, uint32_t piece_out, size_t expected) {
    size_t read = 0, written = 0;
    int result = ISAL_DECOMP_OK;
    memset(back, 0, sizeof back);
    state->avail_in = 0;
    while (state->block_state != ISAL_BLOCK_FINISH && result == ISAL_DECOMP_OK) {
        if (!state->avail_in && read < bytes) {
            state->next_in = packed + read;
            state->avail_in = piece_in < bytes - read ? piece_in : (uint32_t)(bytes - read);
            read += state->avail_in;
        }
        state->next_out = back + written;
        state->avail_out = piece_out < sizeof back - written ? piece_out : (uint32_t)(sizeof back - written);
        size_t before = written;
        result = isal_inflate(state);
        written = (size_t)(state->next_out - back);
        if (written == before && !state->avail_in && read == bytes)
            break;
    }
    return result == ISAL_DECOMP_OK && state->block_state == ISAL_BLOCK_FINISH && written == expected &&
           state->total_out == expected && memcmp(back, plain, expected) == 0;
}

static void streams(void) {
    static const uint32_t memory[] = {0, ISAL_DEF_LVL1_DEFAULT, ISAL_DEF_LVL2_DEFAULT, ISAL_DEF_LVL3_DEFAULT};
    static struct isal_zstream stream;
    static struct inflate_state state;
    uint8_t *level_buf = malloc(ISAL_DEF_LVL3_DEFAULT);
    for (uint32_t level = 0; level <= ISAL_DEF_MAX_LEVEL; level++) {
        static const uint16_t wraps[] = {IGZIP_DEFLATE, IGZIP_GZIP, IGZIP_ZLIB};
        static const uint32_t formats[] = {ISAL_DEFLATE, ISAL_GZIP, ISAL_ZLIB};
        for (int wrap = 0; wrap < 3; wrap++) {
            memset(&stream, 0xa5, sizeof stream);
            isal_deflate_init(&stream);
            stream.level = level;
            stream.level_buf = level ? level_buf : NULL;
            stream.level_buf_size = memory[level];
            stream.gzip_flag = wraps[wrap];
            size_t bytes = deflate(&stream, BYTES, 70000 + level * 100000, 5000 + wrap * 200000);
            printf("level %u format %d: %zu bytes %08x\n", level, wrap, bytes, sum_of(packed, bytes));
            CHECK(bytes > 0 && stream.level_buf == (level ? level_buf : NULL));
            memset(&state, 0xa5, sizeof state);
            isal_inflate_init(&state);
            state.crc_flag = formats[wrap];
            CHECK(inflate(&state, bytes, 3333, 77777, BYTES));
        }
    }
    /* The stream again, without what the application has set. */
    isal_deflate_reset(&stream);
    CHECK(stream.level == ISAL_DEF_MAX_LEVEL && stream.level_buf == level_buf && stream.total_in == 0);
    CHECK(deflate(&stream, 1000, 1000, 100) > 0);
    isal_inflate_reset(&state);
    state.crc_flag = ISAL_ZLIB;
    printf("again: %d %08x\n", inflate(&state, stream.total_out, 300, 170, 1000), sum_of(packed, stream.total_out));
    stream.level_buf_size = 10;
    isal_deflate_reset(&stream);
    CHECK_EQ(isal_deflate(&stream), ISAL_INVALID_LEVEL);
    stream.level = 4;
    CHECK_EQ(isal_deflate(&stream), ISAL_INVALID_LEVEL);
    /* In one call. */
    isal_deflate_stateless_init(&stream);
    stream.next_in = plain;
    stream.avail_in = 50000;
    stream.next_out = packed;
    stream.avail_out = sizeof packed;
    stream.end_of_stream = 1;
    CHECK_EQ(isal_deflate_stateless(&stream), COMP_OK);
    size_t bytes = stream.total_out;
    printf("stateless: %zu bytes %08x\n", bytes, sum_of(packed, bytes));
    isal_inflate_init(&state);
    state.next_in = packed;
    state.avail_in = (uint32_t)bytes;
    state.next_out = back;
    state.avail_out = 50000;
    CHECK_EQ(isal_inflate_stateless(&state), ISAL_DECOMP_OK);
    CHECK(memcmp(back, plain, 50000) == 0);
    stream.next_in = plain + BYTES - 1000;
    stream.avail_in = 1000;
    stream.next_out = packed;
    stream.avail_out = 10;
    CHECK_EQ(isal_deflate_stateless(&stream), STATELESS_OVERFLOW);
    free(level_buf);
}

static void dictionaries(void) {
    static struct isal_zstream stream;
    static struct inflate_state state;
    static struct isal_dict dictionary;
    static struct isal_hufftables tables;
    static struct isal_huff_histogram histogram;
    isal_deflate_init(&stream);
    CHECK_EQ(isal_deflate_set_dict(&stream, plain + 1000, 20000), COMP_OK);
    size_t bytes = deflate(&stream, 30000, 30000, BYTES);
    printf("dictionary: %zu bytes %08x\n", bytes, sum_of(packed, bytes));
    isal_inflate_init(&state);
    CHECK_EQ(isal_inflate_set_dict(&state, plain + 1000, 20000), COMP_OK);
    CHECK(inflate(&state, bytes, 100, 1000, 30000));
    isal_deflate_init(&stream);
    CHECK_EQ(isal_deflate_process_dict(&stream, &dictionary, plain + 1000, 20000), COMP_OK);
    CHECK_EQ(isal_deflate_reset_dict(&stream, &dictionary), COMP_OK);
    CHECK(deflate(&stream, 30000, 30000, BYTES) > 0);
    /* Tables of the application's own. */
    isal_update_histogram(plain, 100000, &histogram);
    CHECK_EQ(isal_create_hufftables(&tables, &histogram), 0);
    printf("tables %08x\n", sum_of((uint8_t *)&tables, sizeof tables));
    isal_deflate_init(&stream);
    struct isal_hufftables *before = stream.hufftables;
    CHECK(before != NULL);
    CHECK_EQ(isal_deflate_set_hufftables(&stream, NULL, IGZIP_HUFFTABLE_CUSTOM), ISAL_INVALID_OPERATION);
    CHECK(stream.hufftables == before);
    CHECK_EQ(isal_deflate_set_hufftables(&stream, &tables, IGZIP_HUFFTABLE_CUSTOM), COMP_OK);
    CHECK(stream.hufftables == &tables);
    bytes = deflate(&stream, 200000, 50000, 50000);
    printf("own tables: %zu bytes %08x\n", bytes, sum_of(packed, bytes));
    isal_inflate_init(&state);
    CHECK(inflate(&state, bytes, 100000, 100000, 200000));
    isal_deflate_init(&stream);
    CHECK_EQ(isal_deflate_set_hufftables(&stream, NULL, IGZIP_HUFFTABLE_STATIC), COMP_OK);
    CHECK(stream.hufftables != NULL && stream.hufftables != before);
    bytes = deflate(&stream, 200000, 50000, 50000);
    printf("static tables: %zu bytes %08x\n", bytes, sum_of(packed, bytes));
}

static void headers(void) {
    static struct isal_zstream stream;
    static struct inflate_state state;
    struct isal_gzip_header header;
    char name[40] = "";
    memset(&header, 0xa5, sizeof header);
    isal_gzip_header_init(&header);
    CHECK(!header.name && !header.extra && !header.comment && header.name_buf_len == 0 && header.os == 0xff);
    header.name = "a name";
    header.name_buf_len = 7;
    header.time = 12345;
    isal_deflate_init(&stream);
    stream.gzip_flag = IGZIP_GZIP_NO_HDR;
    stream.next_out = packed;
    stream.avail_out = 5;
    uint32_t needed = isal_write_gzip_header(&stream, &header);
    CHECK_EQ(needed, 17);
    CHECK(stream.next_out == packed && stream.avail_out == 5);
    stream.avail_out = BYTES;
    CHECK_EQ(isal_write_gzip_header(&stream, &header), 0);
    CHECK(stream.next_out == packed + 17 && stream.total_out == 17);
    stream.next_in = plain;
    stream.avail_in = 5000;
    stream.end_of_stream = 1;
    CHECK_EQ(isal_deflate(&stream), COMP_OK);
    size_t bytes = stream.total_out;
    isal_gzip_header_init(&header);
    header.name = name;
    header.name_buf_len = 3;
    isal_inflate_init(&state);
    state.crc_flag = ISAL_GZIP_NO_HDR_VER;
    state.next_in = packed;
    state.avail_in = (uint32_t)bytes;
    CHECK_EQ(isal_read_gzip_header(&state, &header), ISAL_NAME_OVERFLOW);
    header.name_buf_len = sizeof name;
    CHECK_EQ(isal_read_gzip_header(&state, &header), ISAL_DECOMP_OK);
    printf("name [%.10s] [%.10s]\n", name, name + 4);
    CHECK(header.name == name && memcmp(name, "a n", 3) == 0 && header.time == 12345);
    state.next_out = back;
    state.avail_out = BYTES;
    CHECK_EQ(isal_inflate(&state), ISAL_DECOMP_OK);
    CHECK(state.block_state == ISAL_BLOCK_FINISH && state.total_out == 5000 && memcmp(back, plain, 5000) == 0);
    CHECK_EQ(state.crc, crc32_gzip_refl(0, plain, 5000));
    /* Damaged streams, and bytes that are no stream at all. */
    packed[bytes - 6] ^= 1;
    isal_inflate_init(&state);
    state.crc_flag = ISAL_GZIP;
    state.next_in = packed;
    state.avail_in = (uint32_t)bytes;
    state.next_out = back;
    state.avail_out = BYTES;
    CHECK_EQ(isal_inflate(&state), ISAL_INCORRECT_CHECKSUM);
    uint32_t random = 7;
    int results[16] = {0};
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 300; i++)
            packed[i] = (uint8_t)((random = random * 1103515245 + 12345) >> 16);
        isal_inflate_init(&state);
        state.crc_flag = (uint32_t)round % 4;
        state.next_in = packed;
        state.avail_in = 300;
        state.next_out = back;
        state.avail_out = 5000;
        results[(isal_inflate(&state) + 8) & 15]++;
    }
    for (int i = 0; i < 16; i++)
        printf("garbage: %d times %d\n", results[i], i - 8);
}

static uint64_t reflected(const uint8_t *bytes, size_t count, uint64_t polynomial, uint64_t crc) {
    crc = ~crc;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    return ~crc;
}

static void checksums(void) {
    static uint8_t copy[BYTES];
    size_t counts[] = {0, 1, 9, 4096, BYTES};
    for (int i = 0; i < 5; i++) {
        size_t n = counts[i];

        CHECK_EQ(crc32_gzip_refl(0, plain, n), (uint32_t)reflected(plain, n, 0xedb88320, 0xffffffff00000000));
        CHECK_EQ(crc64_ecma_refl(0, plain, n), reflected(plain, n, 0xc96c5795d7870f42, 0));
        CHECK_EQ(crc64_ecma_refl_base(0, plain, n), crc64_ecma_refl_by8(0, plain, n));
        printf("%04x %08x %08x %016llx %016llx\n", crc16_t10dif(0, plain, n), crc32_ieee(0, plain, n),
               crc32_iscsi(plain, (int)n, 0), (unsigned long long)crc64_iso_norm(5, plain, n),
               (unsigned long long)crc64_jones_refl(6, plain, n));
        memset(copy, 0, n);
        CHECK_EQ(crc16_t10dif_copy(0, copy, plain, n), crc16_t10dif(0, plain, n));
        CHECK(memcmp(copy, plain, n) == 0);
        printf("adler %08x\n", isal_adler32(1, plain, n));
    }
    memset(copy, 0, sizeof copy);
    CHECK_EQ(isal_zero_detect(copy, sizeof copy), 0);
    copy[BYTES - 1] = 1;
    CHECK(isal_zero_detect(copy, sizeof copy) != 0);
}

/* Eight pieces of data and three of parity: any three can be lost. */
static void erasure(size_t length) {
    enum { K = 8, M = 11 };
    uint8_t *pieces[M], matrix[M * K], tables[32 * K * (M - K)], *lost[3], left[K * K], inverse[K * K], rows[3 * K];
    uint8_t *present[K];
    for (int i = 0; i < M; i++) {
        pieces[i] = malloc(length);
        memcpy(pieces[i], plain + (size_t)i * 1000, length);
    }
    gf_gen_cauchy1_matrix(matrix, M, K);
    ec_init_tables(K, M - K, &matrix[K * K], tables);
    ec_encode_data((int)length, K, M - K, tables, pieces, &pieces[K]);
    printf("parity of %zu: %08x %08x %08x\n", length, sum_of(pieces[8], length), sum_of(pieces[9], length),
           sum_of(pieces[10], length));
    int gone[3] = {1, 4, 6}, row = 0;
    for (int i = 0; i < M && row < K; i++) {
        if (i == gone[0] || i == gone[1] || i == gone[2])
            continue;
        memcpy(&left[row * K], &matrix[i * K], K);
        present[row++] = pieces[i];
    }
    CHECK_EQ(gf_invert_matrix(left, inverse, K), 0);
    for (int i = 0; i < 3; i++) {
        memcpy(&rows[i * K], &inverse[gone[i] * K], K);
        lost[i] = calloc(1, length);
    }
    ec_init_tables(K, 3, rows, tables);
    ec_encode_data_avx2((int)length, K, 3, tables, present, lost);
    int same = 1;
    for (int i = 0; i < 3; i++)
        same &= memcmp(lost[i], pieces[gone[i]], length) == 0;
    CHECK(same);
    /* The same parity, one piece of data after the other. */
    uint8_t *sums[3];
    for (int i = 0; i < 3; i++)
        sums[i] = calloc(1, length);
    ec_init_tables(K, M - K, &matrix[K * K], tables);
    for (int i = 0; i < K; i++)
        ec_encode_data_update((int)length, K, M - K, i, tables, pieces[i], sums);
    for (int i = 0; i < 3; i++)
        same &= memcmp(sums[i], pieces[K + i], length) == 0;
    CHECK(same);
    gf_vect_dot_prod((int)length, K, tables, pieces, sums[0]);
    CHECK(memcmp(sums[0], pieces[K], length) == 0);
    for (int i = 0; i < M; i++)
        free(pieces[i]);
    for (int i = 0; i < 3; i++) {
        free(lost[i]);
        free(sums[i]);
    }
}

static void raid(size_t length) {
    enum { N = 6 };
    void *vectors[N];
    uint8_t expected[64];
    for (int i = 0; i < N; i++) {
        if (posix_memalign(&vectors[i], 64, length) != 0)
            exit(1);
        memcpy(vectors[i], plain + i * 777, length);
    }
    for (size_t i = 0; i < 64; i++) {
        expected[i] = 0;
        for (int v = 0; v < N - 1; v++)
            expected[i] ^= ((uint8_t *)vectors[v])[i];
    }
    CHECK_EQ(xor_gen(N, (int)length, vectors), 0);
    CHECK(memcmp(vectors[N - 1], expected, 64) == 0);
    CHECK_EQ(xor_check(N, (int)length, vectors), 0);
    CHECK_EQ(pq_gen(N, (int)length, vectors), 0);
    CHECK_EQ(pq_check(N, (int)length, vectors), 0);
    printf("p and q of %zu: %08x %08x\n", length, sum_of(vectors[N - 2], length), sum_of(vectors[N - 1], length));
    ((uint8_t *)vectors[2])[length / 2] ^= 4;
    CHECK(pq_check(N, (int)length, vectors) != 0);
    CHECK(xor_gen(2, (int)length, vectors) != 0);
    uint8_t table[32];
    gf_vect_mul_init(7, table);
    CHECK_EQ(gf_vect_mul((int)length, table, vectors[0], vectors[1]), 0);
    int right = 1;
    for (size_t i = 0; i < length; i++)
        right &= ((uint8_t *)vectors[1])[i] == gf_mul(7, ((uint8_t *)vectors[0])[i]) || i > 300;
    CHECK(right);
    CHECK_EQ(gf_mul(gf_inv(91), 91), 1);
    for (int i = 0; i < N; i++)
        free(vectors[i]);
}

static void remoted(void) {
    static struct isal_zstream stream, copy;
    static struct inflate_state state;
    isal_deflate_init(&stream);
    copy = stream;
    copy.next_in = plain;
    copy.avail_in = 100;
    copy.next_out = packed;
    copy.avail_out = 100;
    CHECK_EQ(isal_deflate(&copy), COMP_OK);
    memset(&copy, 0, sizeof copy);
    CHECK_EQ(isal_deflate(&copy), ISAL_INVALID_STATE);
    CHECK_EQ(isal_inflate(&state), ISAL_INVALID_BLOCK);
    CHECK_EQ(isal_deflate(NULL), ISAL_INVALID_STATE);
    stream.avail_in = 100;
    stream.next_out = packed;
    stream.avail_out = 100;
    stream.next_in = NULL;
    CHECK_EQ(isal_deflate(&stream), ISAL_INVALID_STATE);
    stream.next_in = plain;
    CHECK_EQ(isal_deflate(&stream), COMP_OK);
    /* Another type of struct in the same place. */
    union {
        struct isal_zstream stream;
        struct inflate_state state;
    } *both = calloc(1, sizeof *both);
    isal_inflate_init(&both->state);
    isal_deflate_init(&both->stream);
    CHECK_EQ(isal_inflate(&both->state), ISAL_INVALID_BLOCK);
    CHECK_EQ(isal_zero_detect(plain, (size_t)-1), -1);
    void *vectors[4] = {plain, plain, plain, NULL};
    CHECK_EQ(xor_gen(4, -32, vectors), 1);
    free(both);
}

static void limited(void) {
    static struct isal_zstream stream;
    static struct inflate_state state;
    isal_deflate_init(&stream);
    CHECK_EQ(isal_deflate(&stream), ISAL_INVALID_STATE);
    isal_inflate_init(&state);
    CHECK_EQ(isal_inflate(&state), ISAL_INVALID_BLOCK);
}

/* At most 64 MiB of a file. */
static uint8_t *content(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    uint8_t *memory = malloc(64u << 20);
    *bytes = file ? fread(memory, 1, 64u << 20, file) : 0;
    return memory;
}

static struct isal_zstream *level_one(void) {
    static struct isal_zstream stream;
    static uint8_t level_buf[ISAL_DEF_LVL1_DEFAULT];
    isal_deflate_init(&stream);
    stream.level = 1;
    stream.level_buf = level_buf;
    stream.level_buf_size = sizeof level_buf;
    return &stream;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static int timed(const char *path) {
    size_t bytes, read = 0;
    uint8_t *in = content(path, &bytes), *out = malloc(64u << 20), *again = malloc(64u << 20);
    struct isal_zstream *stream = level_one();
    stream->next_out = out;
    stream->avail_out = 64u << 20;
    int64_t begin = now();
    do {
        stream->next_in = in + read;
        stream->avail_in = bytes - read < BYTES ? (uint32_t)(bytes - read) : BYTES;
        read += stream->avail_in;
        stream->end_of_stream = read == bytes;
        if (isal_deflate(stream) != COMP_OK)
            return 1;
    } while (read < bytes);
    int64_t between = now();
    static struct inflate_state state;
    isal_inflate_init(&state);
    state.next_in = out;
    state.avail_in = stream->total_out;
    state.next_out = again;
    while (state.block_state != ISAL_BLOCK_FINISH) {
        state.avail_out = BYTES;
        if (isal_inflate(&state) != ISAL_DECOMP_OK)
            return 1;
    }
    int64_t end = now();
    printf("{\"deflate_ns\": %lld, \"inflate_ns\": %lld}\n", (long long)(between - begin), (long long)(end - between));
    return state.total_out != bytes || memcmp(in, again, bytes) != 0;
}

static int hold(const char *path) {
    size_t bytes, room = 64u << 20;
    uint8_t *in = content(path, &bytes), *out = malloc(room);
    for (int round = 0; round < 2; round++) {
        struct isal_zstream *stream = level_one();
        stream->next_in = in;
        stream->avail_in = (uint32_t)bytes;
        stream->next_out = out;
        stream->avail_out = (uint32_t)room;
        stream->end_of_stream = 1;
        int result = isal_deflate(stream);
        printf("result %d total %u %u\n", result, stream->total_in, stream->total_out);
        fflush(stdout);
        if (result != COMP_OK)
            return 3;
        if (round == 0)
            (void)getchar();
    }
    return 0;
}

int main(int argc, char **argv) {
    fill();
    if (argc > 2 && strcmp(argv[1], "hold") == 0)
        return hold(argv[2]);
    if (argc > 2 && strcmp(argv[1], "time") == 0)
        return timed(argv[2]);
    if (argc > 1 && strcmp(argv[1], "remoted") == 0) {
        remoted();
    } else if (argc > 1 && strcmp(argv[1], "limited") == 0) {
        limited();
    } else {
        streams();
        dictionaries();
        headers();
        checksums();
        erasure(64);
        erasure(1000);
        erasure(300000);
        raid(64);
        raid(320);
        raid(262144);
    }
    return check_done();
}
