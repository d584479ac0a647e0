// refused: may be 0
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) { return 1000 / skb->weight; }
