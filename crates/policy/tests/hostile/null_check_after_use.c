// refused: may be NULL
#include "aviary_policy.h"
map_def m;
s64 schedule(__sk_buff *skb) {
    u32 k = 1;
    volatile u64 *v = map_lookup_elem(&m, &k);
    u64 x = *v;
    if (!v) return 0;
    return x;
}
