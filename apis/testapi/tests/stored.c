/* Objects on memory of the caller's, which they hand back when they end. */
#include "check.h"
#include "testapi_stored.h"

struct seen {
    int times;
    uint8_t *data;
    size_t bytes, sum;
};

static void take_back(void *data, size_t bytes, void *context) {
    struct seen *seen = context;
    seen->times++;
    seen->data = data;
    seen->bytes = bytes;
    for (size_t i = 0; i < bytes; i++)
        seen->sum += ((uint8_t *)data)[i];
    free(data);
}

int main(void) {
    struct seen seen = {0};
    ta_store store = NULL, second = NULL;
    for (size_t bytes = 1; bytes < 3 << 20; bytes = bytes * 9 + 1) {
        uint8_t *data = malloc(bytes), *other = malloc(bytes);
        memset(data, 3, bytes);
        memset(other, 5, bytes);
        seen = (struct seen){0};
        CHECK_EQ(ta_store_new(&store, data, bytes, take_back, &seen), TA_OK);
        CHECK_EQ(ta_store_new(&second, other, bytes, take_back, &seen), TA_OK);
        CHECK_EQ(ta_store_add(store, 4), TA_OK);
        CHECK(data[0] == 7 && data[bytes - 1] == 7);
        CHECK_EQ(seen.times, 0);
        CHECK_EQ(ta_store_drop(second), TA_OK);
        CHECK(seen.times == 1 && seen.data == other && seen.bytes == bytes);
        CHECK_EQ(seen.sum, 5 * bytes);
        CHECK_EQ(ta_store_drop(store), TA_OK);
        CHECK(seen.times == 2 && seen.data == data && seen.bytes == bytes);
        CHECK_EQ(seen.sum, 12 * bytes);
    }
    char own[16] = "own";
    CHECK_EQ(ta_store_new(&store, own, 0, take_back, &seen), TA_INVALID_VALUE);
    CHECK_EQ(ta_store_new(&store, own, sizeof own, NULL, NULL), TA_OK);
    CHECK_EQ(ta_store_drop(store), TA_OK);
    CHECK_EQ(seen.times, 2);
    CHECK_EQ(ta_store_drop(NULL), TA_INVALID_VALUE);
    CHECK_EQ(ta_store_add(NULL, 1), TA_INVALID_VALUE);
    return check_done();
}
