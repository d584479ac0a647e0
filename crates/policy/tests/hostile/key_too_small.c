// refused: never written
#include "aviary_policy.h"
map_def m = { .key_size = 8 };
s64 schedule(__sk_buff *skb) {
    u32 k[2];
    k[0] = skb->tenant;
    return map_lookup_elem(&m, &k) != NULL;
}
