// refused: loop
#include "aviary_policy.h"
map_def m;
s64 schedule(__sk_buff *skb) {
    u32 k = 1;
    for (;;) {
        volatile u64 *v = map_lookup_elem(&m, &k);
        if (v && *v == 7) return 1;
    }
}
