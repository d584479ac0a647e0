/* Calls into the application during a call. */
#include "testapi.h"

int64_t ta_each(uint32_t count, ta_visit visit, void *context) {
    int64_t sum = 0;
    if (!visit)
        return -1;
    for (uint32_t i = 0; i < count; i++) {
        int32_t answer = visit(i, context);
        if (answer < 0)
            break;
        sum += answer;
    }
    return sum;
}

ta_status ta_filter_run(const uint8_t *from, uint8_t *to, size_t bytes, ta_filter filter, void *context,
                        uint64_t *total) {
    int32_t state = 0;
    uint64_t sum = 0;
    if (!from || !to || !filter || !total)
        return TA_INVALID_VALUE;
    for (size_t at = 0; at < bytes; at += 1000) {
        size_t piece = bytes - at < 1000 ? bytes - at : 1000;
        sum += filter(from + at, to + at, piece, &state, context);
    }
    *total = sum + (uint64_t)state;
    return TA_OK;
}
