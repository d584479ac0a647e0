// refused: always_inline
#include "aviary_policy.h"
__attribute__((noinline)) u64 f(u64 a) { return a < 2 ? a : f(a - 1) + f(a - 2) * 3; }
s64 schedule(__sk_buff *skb) { return f(skb->tenant); }
