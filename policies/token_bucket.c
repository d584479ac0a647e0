/* Token bucket: a tenant may use RATE of the device's time, and up to BURST at once after a pause.
 *
 * Tokens are nanoseconds of device time. A tenant without tokens is held back, even if the device is idle. */
#include "aviary_policy.h"

#ifndef RATE
#define RATE 250 /* thousandths of the device, for each unit of weight */
#endif
#ifndef BURST
#define BURST 20000000 /* 20 ms */
#endif

struct bucket {
    s64 tokens;
    u64 filled_ns;
};

map_def buckets = { .type = AVA_COUNTERS, .value_size = sizeof(struct bucket), .max_entries = 1, .flags = AVA_PER_TENANT };

static __always_inline struct bucket *filled(__sk_buff *skb) {
    u32 own = 0;
    struct bucket *bucket = map_lookup_elem(&buckets, &own);
    if (!bucket)
        return NULL;
    u64 now = skb->now_ns;
    if (bucket->filled_ns == 0) {
        bucket->tokens = BURST;
    } else if (now > bucket->filled_ns) {
        u64 pause = now - bucket->filled_ns;
        /* A second fills every bucket; a longer pause must not overflow. */
        if (pause > 1000000000)
            pause = 1000000000;
        u64 weight = skb->weight;
        if (weight > 1000)
            weight = 1000;
        s64 tokens = bucket->tokens + pause * weight * RATE / 1000;
        bucket->tokens = tokens > BURST ? BURST : tokens;
    }
    bucket->filled_ns = now;
    return bucket;
}

int consume(__sk_buff *skb) {
    struct bucket *bucket = filled(skb);
    if (bucket)
        bucket->tokens -= load_ava_rc_amount(skb, AVA_DEVICE_TIME);
    return 0;
}

s64 schedule(__sk_buff *skb) {
    struct bucket *bucket = filled(skb);
    if (!bucket || bucket->tokens <= 0)
        return AVA_HOLD;
    /* Among those that may run, who has used least of its allowance. */
    return bucket->tokens;
}
