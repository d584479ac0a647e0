// refused: of the context
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) { return ((u64 *)skb)[-1]; }
