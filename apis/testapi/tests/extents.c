/* Memory that a call does not write stays as it is, rows travel alone, and memory that is given twice is one memory. */
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testapi_extents.h"

static uint64_t hash(const void *memory, size_t bytes) {
    const unsigned char *p = memory;
    uint64_t h = 0xcbf29ce484222325u, word;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    }
    for (; bytes; p++, bytes--)
        h = (h ^ *p) * 0x100000001b3u;
    return h;
}

#define SHOW(memory, bytes) printf("ok   %s:%d %016llx\n", __func__, __LINE__, (unsigned long long)hash(memory, bytes))

static const size_t sizes[] = {1, 7, 8, 64, 255, 256, 257, 1000, 4096, 4097, 70000, 1 << 20};
#define SIZES (sizeof sizes / sizeof *sizes)

static uint8_t *filled(size_t bytes, unsigned seed) {
    uint8_t *memory = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (uint8_t)((i * 7 + seed) >> (i % 3));
    return memory;
}

static void gaps(void) {
    for (size_t n = 0; n < SIZES; n++) {
        uint8_t *to = filled(sizes[n] + 64, 3);
        for (size_t step = 1; step < 300; step = step * 5 + 1) {
            CHECK_EQ(ta_stride(to + 32, sizes[n], step, (uint8_t)(step + n)), TA_OK);
            SHOW(to, sizes[n] + 64);
        }
        CHECK_EQ(ta_stride(to + 32, sizes[n], 0, 0xee), TA_INVALID_VALUE);
        SHOW(to, sizes[n] + 64);
        CHECK_EQ(ta_cover(to + 32, sizes[n], 0x5a), TA_OK);
        SHOW(to, sizes[n] + 64);
        free(to);
    }
    CHECK_EQ(ta_stride(NULL, 0, 1, 1), TA_OK);
    CHECK_EQ(ta_stride(NULL, 9, 1, 1), TA_INVALID_VALUE);
}

/* The callback runs in the middle of the call: what it writes, and the call does not, stays. */
struct others {
    uint8_t *memory;
    size_t bytes, step;
};
static int32_t write_between(uint32_t index, void *context) {
    struct others *others = context;
    for (size_t i = index + 1; i < index + others->step && i < others->bytes; i++)
        others->memory[i] = (uint8_t)(index + i);
    return 0;
}

static void meanwhile(void) {
    for (size_t n = 4; n < 11; n++) {
        uint8_t *to = filled(sizes[n], 9);
        struct others others = {to, sizes[n], sizes[n] / 5 + 2};
        CHECK_EQ(ta_stride_visit(to, sizes[n], others.step, 0x77, write_between, &others), TA_OK);
        SHOW(to, sizes[n]);
        free(to);
    }
}

static void touch_some(uint8_t *bytes, size_t count, void *context) {
    size_t step = *(size_t *)context;
    for (size_t i = 0; i < count; i += step)
        bytes[i] = (uint8_t)i;
}

static void written_by_callbacks(void) {
    for (size_t n = 0; n < SIZES - 1; n++)
        for (size_t step = 1; step < 50; step += 24) {
            uint64_t sum = 0;
            CHECK_EQ(ta_touched(sizes[n], touch_some, &step, &sum), TA_OK);
            printf("ok   touched %llu\n", (unsigned long long)sum);
        }
}

static void rows(void) {
    uint64_t sum = 1;
    for (size_t width = 1; width < 3000; width = width * 7 + 1)
        for (size_t count = 0; count < 40; count = count * 3 + 1)
            for (size_t gap = 0; gap < 5000; gap = gap * 17 + 3) {
                size_t pitch = width + gap, bytes = pitch * count + 64;
                uint8_t *from = filled(bytes, 1), *to = filled(bytes, 2);
                CHECK_EQ(ta_rows_mix(from, pitch, to, pitch, width, count, 0x11, &sum), TA_OK);
                printf("ok   sum %llu\n", (unsigned long long)sum);
                SHOW(from, bytes);
                SHOW(to, bytes);
                free(from), free(to);
            }
    uint8_t *memory = filled(100000, 5);
    CHECK_EQ(ta_rows_mix(memory, 10, memory + 50000, 9, 10, 1, 1, &sum), TA_OK); /* one row: the pitch is not looked at */
    CHECK_EQ(ta_rows_mix(memory, 10, memory + 50000, 10, 0, 3, 1, &sum), TA_INVALID_VALUE);
    SHOW(memory, 100000);
    uint16_t *box = (uint16_t *)memory;
    CHECK_EQ(ta_box_number(box, 5, 7, 11, 3, 90, 100), TA_OK);
    CHECK_EQ(ta_box_number(box + 1000, 100, 20, 120, 5, 2400, 1), TA_OK);
    CHECK_EQ(ta_box_number(box + 20000, 1, 1, 0, 1, 0, 1), TA_OK);
    SHOW(memory, 100000);
    int32_t *matrix = (int32_t *)memory;
    CHECK_EQ(ta_matrix_scale(3, 4, matrix, 5, 7), TA_OK);
    CHECK_EQ(ta_matrix_scale(100, 50, matrix, 200, -3), TA_OK);
    CHECK_EQ(ta_matrix_scale(100, 50, matrix, 99, 3), TA_INVALID_VALUE);
    CHECK_EQ(ta_matrix_scale(100, 50, matrix, -100, 3), TA_INVALID_VALUE);
    CHECK_EQ(ta_matrix_scale(-1, 50, matrix, 100, 3), TA_INVALID_VALUE);
    SHOW(memory, 100000);
    free(memory);
}

/* Rows far apart, between them pages that cannot be read: only rows are looked at. */
static void pages_between(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory = mmap(NULL, page * 9, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 1; n < 9; n += 2)
        CHECK(!mprotect(memory + n * page, page, PROT_NONE));
    uint8_t *from = filled(100 * 5, 1);
    uint64_t sum;
    CHECK_EQ(ta_rows_mix(from, 100, memory, 2 * page, 100, 5, 0x20, &sum), TA_OK);
    for (int n = 0; n < 9; n += 2)
        SHOW(memory + n * page, page);
    free(from);
    munmap(memory, page * 9);
}

static void parts(void) {
    ta_device devices[8] = {0};
    uint32_t count = 0;
    CHECK_EQ(ta_device_list(8, devices, &count), TA_OK);
    for (uint32_t which = 0; which < 64; which++) {
        for (uint32_t fails = 0; fails < 2; fails++) {
            ta_part parts[4];
            memset(parts, 0x3c, sizeof parts);
            static const char own[] = "own";
            for (int i = 0; i < 4; i++)
                parts[i].name = own, parts[i].device = devices[0];
            CHECK_EQ(ta_parts_fill(devices[0], 3, which | fails * 128, parts), fails ? TA_INVALID_VALUE : TA_OK);
            for (int i = 0; i < 4; i++) {
                printf("ok   %s\n", parts[i].name ? parts[i].name : "none");
                CHECK(parts[i].device == devices[0]);
                CHECK(!(which & 36) || i == 3 ? parts[i].name == own : parts[i].name != own);
                parts[i].name = NULL, parts[i].device = NULL;
            }
            SHOW(parts, sizeof parts);
        }
    }
}

static void twice(void) {
    for (size_t n = 1; n < 300000; n = n * 9 + 2) {
        int32_t *memory = malloc((n + 40) * sizeof *memory);
        for (size_t i = 0; i < n + 40; i++)
            memory[i] = (int32_t)(i * 31);
        CHECK_EQ(ta_shift_sum(memory + 8, memory + 8, n), TA_OK);
        SHOW(memory, (n + 40) * sizeof *memory);
        CHECK_EQ(ta_shift_sum(memory + 8, memory + 9, n), TA_OK);
        SHOW(memory, (n + 40) * sizeof *memory);
        CHECK_EQ(ta_shift_sum(memory + 9, memory + 8, n), TA_OK);
        SHOW(memory, (n + 40) * sizeof *memory);
        CHECK_EQ(ta_copy_apart((uint8_t *)memory, (uint8_t *)(memory + n / 2 + 1), n / 2), TA_OK);
        SHOW(memory, (n + 40) * sizeof *memory);
        free(memory);
    }
    char text[64] = "hello";
    CHECK_EQ(ta_next_letters(text, text, sizeof text), TA_OK);
    CHECK_EQ(ta_next_letters(text, text + 2, 50), TA_OK);
    SHOW(text, sizeof text);
}

/* --- random calls ---------------------------------------------------------------------------- */

#define ARENA ((size_t)4 << 20)
#define LARGEST ((size_t)1 << 20)
#define AROUND 64
static uint8_t *arena;
static uint64_t state;
static size_t lowest, highest;

static size_t below(size_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return limit ? (state >> 20) % limit : 0;
}

/* As many of each magnitude. */
static size_t length(void) {
    size_t most = (size_t)1 << below(21);
    return 1 + below(most < LARGEST ? most : LARGEST);
}

/* A place for so many bytes: anywhere, or where another one is, or close to it. */
static uint8_t *place(size_t bytes, const uint8_t *other, size_t other_bytes) {
    size_t room = ARENA - bytes, at = below(room);
    if (other && below(4)) {
        size_t from = (size_t)(other - arena);
        size_t near = below(3) ? from : from + below(other_bytes + 1);
        if (!below(4) && near >= bytes)
            near -= below(bytes + 1);
        at = near < room ? near : room;
    }
    lowest = at < lowest ? at : lowest;
    highest = at + bytes > highest ? at + bytes : highest;
    return arena + at;
}

static int32_t *numbers(size_t n, const void *other, size_t other_bytes) {
    uint8_t *p = place(n * 4 + 4, other, other_bytes);
    return (int32_t *)(arena + ((size_t)(p - arena) & ~(size_t)3));
}

static uint64_t random_call(void) {
    size_t n = length(), m = length(), k = length();
    uint8_t *a = place(n, NULL, 0), *b, *c;
    uint64_t out = 0;
    int64_t apart[2] = {0};
    switch (below(9)) {
    case 0:
        return (uint64_t)ta_stride(a, n, below(8) ? 1 + below(n) : 0, (uint8_t)below(256));
    case 1:
        return (uint64_t)ta_cover(a, n, (uint8_t)below(256));
    case 2: {
        size_t rows = 1 + below(40), width = 1 + n / 40;
        size_t pitches[2] = {width + below(2) * below(width + 200), width + below(2) * below(width + 200)};
        size_t from = (rows - 1) * pitches[0] + width, to = (rows - 1) * pitches[1] + width;
        b = place(from, NULL, 0);
        c = place(to, b, from);
        uint64_t status = (uint64_t)ta_rows_mix(b, pitches[0], c, pitches[1], width, rows, (uint8_t)below(256), &out);
        return status ^ out;
    }
    case 3: {
        size_t width = 1 + below(50), rows = 1 + below(20), planes = 1 + below(10);
        size_t pitch = width + below(2) * below(100), step = (rows - 1) * pitch + width + below(2) * below(500);
        uint16_t *to = (uint16_t *)numbers(((planes - 1) * step + rows * pitch) / 2 + 2, NULL, 0);
        return (uint64_t)ta_box_number(to, width, rows, pitch, planes, step, (uint16_t)below(65536));
    }
    case 4: {
        int32_t rows = 1 + (int32_t)below(60), columns = 1 + (int32_t)below(60), lda = rows - 1 + (int32_t)below(50);
        int32_t *matrix = numbers((size_t)lda * (size_t)columns + (size_t)rows, NULL, 0);
        return (uint64_t)ta_matrix_scale(rows, columns, matrix, lda, 3);
    }
    case 5: {
        int32_t *from = numbers(n / 4, NULL, 0), *to = numbers(n / 4, from, n / 4 * 4);
        return (uint64_t)ta_shift_sum(from, to, n / 4);
    }
    case 6: {
        b = place(m, a, n);
        c = place(k, below(2) ? a : b, below(2) ? n : m);
        uint64_t status = (uint64_t)ta_blend(a, n, b, m, c, k, apart);
        /* Distances of what does not overlap mean nothing. */
        int ab = a < b + m && b < a + n, ac = a < c + k && c < a + n;
        return status ^ (uint64_t)(ab ? apart[0] : 0) ^ (uint64_t)(ac ? apart[1] : 0);
    }
    case 7: {
        const uint8_t *from[5];
        uint32_t count = (uint32_t)below(6);
        for (uint32_t i = 0; i < count; i++)
            from[i] = place(n, i ? from[i - 1] : a, n);
        return (uint64_t)ta_gather(count, n, from, place(n, count ? from[0] : a, n));
    }
    default: {
        ta_walk walk = {.left = n / 2, .room = (uint16_t)(m % 65536), .add = 3, .most = (uint32_t)below(n + 1)};
        size_t before = walk.left, room = walk.room;
        walk.from = (uint16_t *)numbers(before / 2 + 1, NULL, 0);
        walk.to = (uint16_t *)numbers(room / 2 + 1, walk.from, before * 2);
        return (uint64_t)ta_walk_on(&walk) ^ walk.left ^ (uint64_t)walk.room << 32;
    }
    }
}

static void at_random(size_t calls, uint64_t seed) {
    arena = filled(ARENA, 1);
    state = seed;
    uint64_t seen = 0;
    for (size_t call = 1; call <= calls; call++) {
        lowest = ARENA, highest = 0;
        seen = seen * 31 + random_call();
        lowest = lowest > AROUND ? lowest - AROUND : 0;
        highest = highest + AROUND < ARENA ? highest + AROUND : ARENA;
        seen = seen * 31 + hash(arena + lowest, highest - lowest);
        if (call % 500 == 0 || call == calls) {
            seen = seen * 31 + hash(arena, ARENA);
            printf("ok   %zu calls %016llx\n", call, (unsigned long long)seen);
            fflush(stdout);
        }
    }
    free(arena);
}

/* extents [CALLS [SEED]]: so many random calls, and nothing else. */
int main(int argc, char **argv) {
    if (argc > 1) {
        at_random(strtoul(argv[1], NULL, 0), argc > 2 ? strtoull(argv[2], NULL, 0) : 1);
        return check_done();
    }
    gaps();
    meanwhile();
    written_by_callbacks();
    rows();
    pages_between();
    parts();
    twice();
    return check_done();
}
