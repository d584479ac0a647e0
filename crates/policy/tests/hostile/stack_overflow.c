// refused: the stack is
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) {
    volatile u64 x[8], *hidden = x;
    __asm__ volatile("" : "+r"(hidden));
    return hidden[-60];
}
