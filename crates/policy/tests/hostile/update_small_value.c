// refused: the helper reads stack
#include "aviary_policy.h"
map_def m = { .type = AVA_HASH, .value_size = 32 };
int consume(__sk_buff *skb) {
    u32 k = 1;
    u64 v[4];
    v[0] = 1;
    return map_update_elem(&m, &k, v, AVA_ANY);
}
