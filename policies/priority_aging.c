/* Priorities with aging: the higher priority goes first, but each AGING_NS of waiting counts as one more. Nobody waits
 * longer than AGING_NS times the difference of the priorities, plus what is already running. */
#include "aviary_policy.h"

#ifndef AGING_NS
#define AGING_NS 10000000 /* 10 ms */
#endif
/* So that time counts below a whole step, too. */
#define STEPS 1000

s64 schedule(__sk_buff *skb) {
    u64 priority = skb->priority, waited = 0;
    if (priority > 1000)
        priority = 1000;
    if (skb->now_ns > skb->waiting_since_ns)
        waited = skb->now_ns - skb->waiting_since_ns;
    return priority * STEPS + waited / (AGING_NS / STEPS);
}
