#include "aviary_policy.h"
map_def m;
s64 schedule(__sk_buff *skb) {
    u64 sum = 0;
    for (u32 i = 0; i < 8; i++) { u64 *v = map_lookup_elem(&m, &i); if (v) sum += *v; }
    return sum; }
