/* Pointers that the library advances, and streams whose struct the application allocates.
 * flows          what is equal natively and remotely
 * flows remoted  what only a remoted stream knows: copies, forgotten and foreign structs, limits */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

#define BYTES (3u << 20)

static uint8_t input[BYTES], expected[2 * BYTES], output[2 * BYTES];

static void cursors(void) {
    static uint16_t from[100000], to[100000];
    for (size_t i = 0; i < 100000; i++)
        from[i] = (uint16_t)(i * 31);
    ta_walk w = {.from = from, .left = 100000, .to = to, .room = 40000, .add = 5, .most = 30000};
    CHECK_EQ(ta_walk_on(&w), TA_OK);
    CHECK(w.from == from + 30000 && w.left == 70000 && w.to == to + 30000 && w.room == 10000);
    CHECK_EQ(ta_walk_on(&w), TA_OK);
    CHECK(w.from == from + 40000 && w.left == 60000 && w.to == to + 40000 && w.room == 0);
    CHECK_EQ(ta_walk_on(&w), TA_OK);
    CHECK(w.from == from + 40000 && w.to == to + 40000);
    w.room = 3;
    w.left = 2;
    CHECK_EQ(ta_walk_on(&w), TA_OK);
    CHECK(w.from == from + 40002 && w.left == 0 && w.to == to + 40002 && w.room == 1);
    int right = 1;
    for (size_t i = 0; i < 40002; i++)
        right &= to[i] == (uint16_t)(from[i] + 5);
    CHECK(right && to[40002] == 0);
    w = (ta_walk){.most = 1};
    CHECK_EQ(ta_walk_on(&w), TA_OK);
    CHECK(!w.from && !w.to);
    w = (ta_walk){.from = from, .left = 4, .room = 4, .most = 4};
    CHECK_EQ(ta_walk_on(&w), TA_INVALID_VALUE);
    w = (ta_walk){.to = to, .left = 4, .room = 4, .most = 4};
    CHECK_EQ(ta_walk_on(&w), TA_INVALID_VALUE);
    CHECK(w.to == to && w.left == 4);
}

static void aligned(void) {
    size_t counts[] = {1, 40, 300, 100000};
    for (int i = 0; i < 4; i++) {
        void *memory[4];
        for (int row = 0; row < 4; row++) {
            if (posix_memalign(&memory[row], 64, counts[i]) != 0)
                exit(1);
            memset(memory[row], row + 1, counts[i]);
        }
        uint64_t sums[3] = {0};
        const uint8_t *rows[3] = {memory[0], memory[1], memory[2]};
        CHECK_EQ(ta_rows_sum(3, counts[i], rows, sums, memory[3]), TA_OK);
        CHECK(sums[0] == counts[i] && sums[1] == 2 * counts[i] && sums[2] == 3 * counts[i]);
        CHECK(memcmp(memory[3], memory[2], counts[i]) == 0);
        for (int row = 0; row < 4; row++)
            free(memory[row]);
    }
}

/* The bytes that a stream writes. */
static void expect(const uint8_t *table) {
    uint8_t sum = 0;
    for (size_t i = 0; i < BYTES; i++) {
        sum = (uint8_t)(sum + (table ? table[input[i]] : input[i]));
        expected[2 * i] = expected[2 * i + 1] = sum;
    }
}

/* Everything, in pieces of both buffers. */
static int run(ta_flow *flow, uint32_t piece_in, uint32_t piece_out) {
    size_t read = 0, written = 0;
    memset(output, 0, sizeof output);
    flow->avail_in = 0;
    do {
        if (!flow->avail_in && read < BYTES) {
            flow->next_in = input + read;
            flow->avail_in = piece_in < BYTES - read ? piece_in : (uint32_t)(BYTES - read);
            read += flow->avail_in;
        }
        uint8_t *begin = flow->next_out = output + written;
        uint32_t room = flow->avail_out = piece_out < 2 * BYTES - written ? piece_out : (uint32_t)(2 * BYTES - written);
        const uint8_t *first = flow->next_in;
        uint32_t had = flow->avail_in;
        if (ta_flow_run(flow) != TA_OK)
            return 0;
        if (flow->next_in != first + (had - flow->avail_in) || flow->next_out != begin + (room - flow->avail_out))
            return 0;
        written += room - flow->avail_out;
    } while (written < 2 * BYTES);
    return flow->total_in == BYTES && flow->total_out == 2 * BYTES && memcmp(output, expected, sizeof output) == 0;
}

static void streams(void) {
    static uint8_t table[256];
    static uint32_t counts[300];
    for (unsigned i = 0; i < 256; i++)
        table[i] = (uint8_t)(i * 5 + 3);
    for (size_t i = 0; i < BYTES; i++)
        input[i] = (uint8_t)((i * i) >> 7);
    expect(NULL);
    ta_flow flow;
    memset(&flow, 0xa5, sizeof flow);
    CHECK_EQ(ta_flow_init(&flow), TA_OK);
    CHECK(flow.table && flow.table[0] == 0 && flow.table[77] == 77 && flow.table[255] == 255);
    CHECK(!flow.counts && flow.counts_size == 0 && flow.total_in == 0);
    CHECK(run(&flow, 100000, 70001));
    ta_flow_reset(&flow);
    CHECK(flow.total_in == 0 && flow.table && flow.table[77] == 77);
    CHECK(run(&flow, BYTES, 2 * BYTES));
    ta_flow_reset(&flow);
    flow.counts = counts;
    flow.counts_size = 300;
    flow.distance = 1000;
    CHECK(run(&flow, 65536, 65535));
    CHECK_EQ(flow.most, 38400);
    CHECK_EQ(flow.again, input[BYTES - 1001]);
    flow.table = table;
    expect(table);
    ta_flow_reset(&flow);
    CHECK(run(&flow, 1000, 250000));
    CHECK(flow.table == table && flow.counts == counts);
    flow.counts_size = 255;
    CHECK_EQ(ta_flow_run(&flow), TA_INVALID_VALUE);
    flow.counts = NULL;
    flow.distance = 16384;
    CHECK_EQ(ta_flow_run(&flow), TA_INVALID_VALUE);
    flow.distance = 5;
    flow.avail_in = flow.avail_out = 0;
    CHECK_EQ(ta_flow_run(&flow), TA_OK);
    CHECK_EQ(flow.again, input[BYTES - 6]);
    /* Memory behind pointers that no call looks at may be gone. */
    void *gone = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    flow.next_in = gone;
    flow.next_out = gone;
    flow.avail_in = flow.avail_out = 1 << 16;
    ta_flow_reset(&flow);
    CHECK(flow.next_in == gone && flow.next_out == gone && flow.avail_in == 1 << 16);
    CHECK_EQ(ta_flow_end(&flow), TA_OK);
    CHECK_EQ(ta_flow_end(&flow), TA_INVALID_VALUE);
    CHECK_EQ(ta_flow_run(&flow), TA_INVALID_VALUE);
    CHECK_EQ(ta_flow_init(&flow), TA_OK);
    CHECK(run(&(ta_flow){0}, 1, 1) == 0);
    CHECK_EQ(ta_flow_init(&flow), TA_OK);
    CHECK_EQ(ta_flow_end(&flow), TA_OK);
}

/* The library reads what it was given before, at any sizes; its input lies in one piece. What it shows of its own is read. */
static void behind(void) {
    static const uint32_t looks[] = {1, 100, 5000, 16384};
    for (size_t i = 0; i < BYTES; i++)
        input[i] = (uint8_t)((i * i) >> 5);
    uint32_t wrong = 0, random = 1;
    for (int round = 0; round < 40; round++) {
        ta_flow flow;
        uint8_t sum = 0;
        size_t given = 0, summed = 0;
        if (ta_flow_init(&flow) != TA_OK)
            exit(1);
        flow.look = looks[round % 4];
        flow.next_in = input;
        flow.avail_in = 0;
        for (int call = 0; call < 30; call++) {
            random = random * 1103515245 + 12345;
            uint32_t more = (random >> 8) % (round % 8 < 4 ? 300 : 70000);
            if (!flow.avail_in && given + more <= BYTES) {
                flow.avail_in = more;
                given += more;
            }
            flow.next_out = output;
            flow.avail_out = (random >> 4) % (round % 3 ? 140000 : 500);
            uint64_t hash = 0;
            const uint8_t *begin = flow.next_in;
            for (uint32_t n = flow.look < flow.total_in ? flow.look : flow.total_in; flow.avail_in && n; n--)
                hash = hash * 31 + begin[-(ptrdiff_t)n];
            wrong += ta_flow_run(&flow) != TA_OK || flow.behind != hash;
            for (; summed < flow.total_in; summed++)
                sum = (uint8_t)(sum + input[summed]);
            wrong += flow.internal.sum != sum || flow.internal.held != (flow.total_out < 2 * flow.total_in);
        }
        wrong += ta_flow_end(&flow) != TA_OK;
    }
    CHECK_EQ(wrong, 0);
}

/* Two at the same time, and one in each place after the other. */
static void many(void) {
    static ta_flow flows[50];
    uint8_t in[2] = {7, 9}, out[4];
    int right = 1;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 50; i++) {
            right &= ta_flow_init(&flows[i]) == TA_OK;
            flows[i].next_in = in;
            flows[i].avail_in = 2;
        }
        for (int i = 49; i >= 0; i--) {
            flows[i].next_out = out;
            flows[i].avail_out = 3;
            right &= ta_flow_run(&flows[i]) == TA_OK && out[0] == 7 && out[1] == 7 && out[2] == 16;
        }
        for (int i = 0; i < 50; i++) {
            flows[i].next_out = out;
            flows[i].avail_out = 1;
            out[0] = 0;
            right &= ta_flow_run(&flows[i]) == TA_OK && out[0] == 16 && flows[i].total_out == 4;
        }
    }
    CHECK(right);
}

static void remoted(void) {
    CHECK_EQ(ta_flow_init(NULL), TA_OUT_OF_MEMORY);
    static ta_flow flow, copy;
    uint8_t in[4] = {1, 2, 3, 4}, out[8] = {0};
    CHECK_EQ(ta_flow_init(&flow), TA_OK);
    flow.next_in = in;
    flow.avail_in = 4;
    flow.next_out = out;
    flow.avail_out = 4;
    CHECK_EQ(ta_flow_run(&flow), TA_OK);
    copy = flow;
    CHECK_EQ(ta_flow_run(&copy), TA_OK);
    CHECK_EQ(ta_flow_end(&copy), TA_OK);
    /* The library leaves its buffer: the call fails, the struct is as it was. */
    uint16_t from[4] = {0}, to[4] = {0};
    ta_walk w = {.from = from, .left = 4, .to = to, .room = 4, .most = 2, .moves = 1};
    CHECK_EQ(ta_walk_on(&w), TA_INVALID_VALUE);
    CHECK(w.from == from && w.to == to && w.left == 4);
    /* Another process has no such stream. */
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ta_flow other;
        int wrong = ta_flow_init(&other) != TA_OK || ta_flow_run(&flow) != TA_INVALID_VALUE || ta_flow_end(&other) != TA_OK;
        _exit(wrong);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    flow.avail_out = 4;
    CHECK_EQ(ta_flow_run(&flow), TA_OK);
    CHECK(out[7] == 10 && flow.total_in == 4);
    CHECK_EQ(ta_flow_end(&flow), TA_OK);
    /* The limit has room for two streams. What was forgotten is found when there are many. */
    static ta_flow a, b, c;
    CHECK_EQ(ta_flow_init(&a), TA_OK);
    CHECK_EQ(ta_flow_init(&b), TA_OK);
    CHECK_EQ(ta_flow_init(&c), TA_OUT_OF_MEMORY);
    CHECK_EQ(ta_flow_run(&c), TA_INVALID_VALUE);
    CHECK_EQ(ta_flow_end(&a), TA_OK);
    CHECK_EQ(ta_flow_init(&c), TA_OK);
    CHECK_EQ(ta_flow_init(&c), TA_OK);
    CHECK_EQ(ta_flow_end(&b), TA_OK);
    CHECK_EQ(ta_flow_end(&c), TA_OK);
    int32_t lost = 0;
    for (int i = 0; i < 1000; i++) {
        memset(&a, 0, sizeof a);
        lost += ta_flow_init(&a) != TA_OK;
    }
    CHECK_EQ(lost, 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "remoted") == 0) {
        remoted();
    } else {
        cursors();
        aligned();
        streams();
        many();
        behind();
    }
    return check_done();
}
