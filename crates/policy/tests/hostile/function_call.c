// refused: always_inline
#include "aviary_policy.h"
static __attribute__((noinline)) u64 f(u64 a) { return a * 3 + (a >> 2); }
s64 schedule(__sk_buff *skb) { return f(skb->tenant) + f(skb->weight); }
