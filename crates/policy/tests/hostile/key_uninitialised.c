// refused: never written
#include "aviary_policy.h"
map_def m;
s64 schedule(__sk_buff *skb) {
    u32 k;
    return map_lookup_elem(&m, &k) != NULL;
}
