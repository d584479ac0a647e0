// refused: writes to a constant
#include "aviary_policy.h"
const u64 limits[4] = { 1, 2, 3, 4 };
int consume(__sk_buff *skb) {
    ((volatile u64 *)limits)[1] = 5;
    return 0;
}
