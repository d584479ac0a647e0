// refused: else than NULL
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) {
    u64 a = (u64)skb;
    return a > 0x7f0000000000 ? 1 : 2;
}
