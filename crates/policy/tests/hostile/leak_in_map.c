// refused: must not leave
#include "aviary_policy.h"
map_def m;
int consume(__sk_buff *skb) {
    u32 k = 1;
    u64 *v = map_lookup_elem(&m, &k);
    if (v) *v = (u64)skb;
    return 0;
}
