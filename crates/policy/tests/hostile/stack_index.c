// refused: not constant
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) {
    volatile u8 x[16];
    for (int i = 0; i < 16; i++) x[i] = i;
    return x[skb->tenant & 15];
}
