// refused: address of a map
#include "aviary_policy.h"
s64 schedule(__sk_buff *skb) {
    u32 k = 0;
    return map_lookup_elem((void *)0x1000, &k) != NULL;
}
