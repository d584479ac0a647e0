// refused: holds an address
#include "aviary_policy.h"
static u64 x;
u64 *volatile p = &x;
s64 schedule(__sk_buff *skb) { return *p; }
