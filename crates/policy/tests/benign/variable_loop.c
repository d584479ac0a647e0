#include "aviary_policy.h"
map_def m;
s64 schedule(__sk_buff *skb) {
    u64 sum = 0, n = skb->queued;
    if (n > 64) n = 64;
    for (u32 i = 0; i < n; i++) { u64 *v = map_lookup_elem(&m, &i); if (v && *v > 3) sum += *v; else sum += 1; }
    return sum; }
