// refused: read-only
#include "aviary_policy.h"
int consume(__sk_buff *skb) {
    skb->weight = 1000;
    return 0;
}
