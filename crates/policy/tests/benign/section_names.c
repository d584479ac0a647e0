#include "aviary_policy.h"
__attribute__((section("schedule"))) s64 my_policy(__sk_buff *skb) { return skb->priority; }
__attribute__((section("consume"))) int my_account(__sk_buff *skb) { return 0; }
