// refused: no helper 6
#include "aviary_policy.h"
static int (*print)(const char *, int) = (void *)6;
s64 schedule(__sk_buff *skb) { return print(0, 4); }
