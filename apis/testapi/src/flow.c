/* Cursors and streams. */
#include <string.h>

#include "testapi.h"

#define BEGUN 0x7a5f1003u
#define LAST sizeof((ta_flow_internal *)0)->last

ta_status ta_walk_on(ta_walk *walk) {
    if (!walk || (walk->left && !walk->from) || (walk->room && !walk->to))
        return TA_INVALID_VALUE;
    for (uint32_t n = 0; n < walk->most && walk->left && walk->room; n++, walk->left--, walk->room--)
        *walk->to++ = (uint16_t)(*walk->from++ + walk->add);
    if (walk->moves)
        walk->from += walk->left + 1;
    return TA_OK;
}

ta_status ta_rows_sum(uint32_t rows, size_t bytes, const uint8_t *const *from, uint64_t *sums, uint8_t *last) {
    if (rows && (!from || !sums || !last || (uintptr_t)last % 64))
        return TA_INVALID_VALUE;
    for (uint32_t row = 0; row < rows; row++) {
        if (!from[row] || (uintptr_t)from[row] % 64)
            return TA_INVALID_VALUE;
        sums[row] = 0;
        for (size_t i = 0; i < bytes; i++)
            sums[row] += from[row][i];
        memcpy(last, from[row], bytes);
    }
    return TA_OK;
}

static const uint8_t *itself(void) {
    static uint8_t table[256];
    for (unsigned i = 0; i < 256; i++)
        table[i] = (uint8_t)i;
    return table;
}

ta_status ta_flow_init(ta_flow *flow) {
    if (!flow)
        return TA_INVALID_VALUE;
    flow->table = itself();
    flow->counts = NULL;
    flow->counts_size = flow->most = flow->distance = flow->again = flow->look = 0;
    flow->behind = 0;
    ta_flow_reset(flow);
    return TA_OK;
}

void ta_flow_reset(ta_flow *flow) {
    flow->total_in = flow->total_out = 0;
    memset(&flow->internal, 0, sizeof flow->internal);
    flow->internal.begun = BEGUN;
}

static int emit(ta_flow *flow, uint8_t byte) {
    if (!flow->avail_out)
        return 0;
    *flow->next_out++ = byte;
    flow->avail_out--;
    flow->total_out++;
    return 1;
}

/* Reads what lies before the pointer, as it is there. */
static uint64_t look_behind(const ta_flow *flow) {
    uint64_t hash = 0;
    uint32_t bytes = flow->look < flow->total_in ? flow->look : flow->total_in;
    for (uint32_t n = bytes < LAST ? bytes : LAST; flow->avail_in && n; n--)
        hash = hash * 31 + flow->next_in[-(ptrdiff_t)n];
    return hash;
}

ta_status ta_flow_run(ta_flow *flow) {
    ta_flow_internal *own = &flow->internal;
    if (own->begun != BEGUN || !flow->table || (flow->counts && flow->counts_size < 256))
        return TA_INVALID_VALUE;
    if (flow->counts && own->counted != flow->counts) {
        memset(flow->counts, 0, 256 * sizeof *flow->counts);
        own->counted = flow->counts;
        flow->most = 0;
    }
    flow->behind = look_behind(flow);
    if (own->held && emit(flow, own->sum))
        own->held = 0;
    while (!own->held && flow->avail_in && flow->avail_out) {
        uint8_t byte = *flow->next_in++;
        flow->avail_in--;
        own->last[flow->total_in++ % LAST] = byte;
        if (flow->counts && ++flow->counts[byte] > flow->most)
            flow->most = flow->counts[byte];
        own->sum = (uint8_t)(own->sum + flow->table[byte]);
        emit(flow, own->sum);
        own->held = !emit(flow, own->sum);
    }
    if (flow->total_in > flow->distance)
        flow->again = own->last[(flow->total_in - 1 - flow->distance) % LAST];
    return flow->distance < LAST ? TA_OK : TA_INVALID_VALUE;
}

ta_status ta_flow_end(ta_flow *flow) {
    if (!flow || flow->internal.begun != BEGUN)
        return TA_INVALID_VALUE;
    flow->internal.begun = 0;
    return TA_OK;
}
