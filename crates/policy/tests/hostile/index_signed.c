// refused: without known bounds
#include "aviary_policy.h"
u64 counts[16];
s64 schedule(__sk_buff *skb) {
    s64 i = skb->tenant;
    if (i >= 16 || i < -4) return 0;
    return counts[i];
}
