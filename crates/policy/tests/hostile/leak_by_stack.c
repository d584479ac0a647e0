// refused: number
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) {
    volatile u64 x = 0;
    return (s64)&x;
}
