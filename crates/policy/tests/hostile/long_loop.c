// refused: loop
#include "aviary_policy.h"
u64 x;
s64 schedule(__sk_buff *skb) {
    for (u32 i = 0; i < 1000000; i++) *(volatile u64 *)&x += i;
    return x;
}
