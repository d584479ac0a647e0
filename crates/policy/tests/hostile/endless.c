// refused: may never end
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) {
    volatile u64 x = 1;
    while (x) ;
    return 0;
}
