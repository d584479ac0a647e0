// refused: of map
#include "aviary_policy.h"
map_def m;
struct big { u64 a, b; };
s64 schedule(__sk_buff *skb) {
    u32 k = 1;
    struct big *v = map_lookup_elem(&m, &k);
    return v ? v->b : 0;
}
