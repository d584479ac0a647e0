// refused: not constant
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) { return ((u64 *)skb)[skb->tenant & 7]; }
