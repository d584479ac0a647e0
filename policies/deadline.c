/* Earliest deadline first: a command is due PERIOD_NS >> priority after it began to wait. What is due first, less the
 * time that it needs, goes first. */
#include "aviary_policy.h"

#ifndef PERIOD_NS
#define PERIOD_NS 64000000 /* 64 ms at priority 0, 32 ms at 1, ... 1 ms at 6 and above */
#endif

s64 schedule(__sk_buff *skb) {
    u64 priority = skb->priority;
    if (priority > 6)
        priority = 6;
    return -(s64)(skb->waiting_since_ns + (PERIOD_NS >> priority) - skb->expected_ns);
}
