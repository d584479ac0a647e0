// refused: not a number
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) { return (s64)skb; }
