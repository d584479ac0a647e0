// refused: as an address
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) { return *(volatile u64 *)0x400000; }
