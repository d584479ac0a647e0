#include "aviary_policy.h"
static u64 counts[16]; const u64 limits[4] = { 1, 2, 4, 8 }; u64 total = 3;
int consume(__sk_buff *skb) { u64 i = skb->tenant; if (i < 16) counts[i] += 1; total++; return 0; }
s64 schedule(__sk_buff *skb) { return total + counts[skb->session & 15] * limits[skb->priority & 3]; }
