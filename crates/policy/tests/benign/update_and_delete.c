#include "aviary_policy.h"
map_def m = { .type = AVA_HASH, .key_size = 8, .value_size = 24 };
struct v { u64 a, b, c; };
int consume(__sk_buff *skb) {
    u64 k = skb->session; struct v v = { 1, skb->now_ns, 3 };
    if (skb->queued == 0) return map_delete_elem(&m, &k);
    return map_update_elem(&m, &k, &v, AVA_ANY); }
