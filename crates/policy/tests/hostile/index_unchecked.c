// refused: without known bounds
#include "aviary_policy.h"
u64 counts[16];
s64 schedule(__sk_buff *skb) { return counts[skb->tenant]; }
