// refused: may be NULL
#include "aviary_policy.h"
map_def m;
s64 schedule(__sk_buff *skb) {
    u32 k = 1, l = 2;
    u64 *v = map_lookup_elem(&m, &k), *w = map_lookup_elem(&m, &l);
    if (!v) return 0;
    return *w;
}
