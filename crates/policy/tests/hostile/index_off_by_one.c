// refused: of the global variables
#include "aviary_policy.h"
u64 counts[16];
s64 schedule(__sk_buff *skb) {
    u64 i = skb->tenant;
    return i <= 16 ? counts[i] : 0;
}
