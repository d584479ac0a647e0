// refused: loop
#include "aviary_policy.h"
u64 x;
s64 schedule(__sk_buff *skb) {
    for (u64 i = 0; i < skb->queued; i++) *(volatile u64 *)&x += i;
    return x;
}
