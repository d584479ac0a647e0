// refused: not defined
#include "aviary_policy.h"
extern u64 elsewhere(u64);
s64 schedule(__sk_buff *skb) { return elsewhere(1); }
