/* Figure 7 of the AvA paper (ASPLOS '20), completed where it says "Load ..." and with the types that it leaves out:
 * tenants that have sent less than their share of all commands go first. */
#include "aviary_policy.h"

map_def cmd_cnt, priority;
kernel_calls = ava_get_rc_id("kernel_calls");
tot_id = 0; // ID of total in cmd_cnt
int consume(__sk_buff *skb) {
    u32 vm_id; u64 amount, *vm_cnt, *tot_cnt;
    vm_id = load_ava_vm_id(skb);
    amount = load_ava_rc_amount(skb, kernel_calls);
    vm_cnt = map_lookup_elem(&cmd_cnt, &vm_id);
    tot_cnt = map_lookup_elem(&cmd_cnt, &tot_id);
    fetch_and_add(vm_cnt, amount);
    fetch_and_add(tot_cnt, amount); }

int schedule(__sk_buff *skb) {
    /* ...Load vm_id, vm_cnt, vm_pri, tot_cnt, and tot_pri... */
    u32 vm_id = load_ava_vm_id(skb);
    u64 *cnt = map_lookup_elem(&cmd_cnt, &vm_id), *tot = map_lookup_elem(&cmd_cnt, &tot_id);
    u64 *pri = map_lookup_elem(&priority, &vm_id), *sum = map_lookup_elem(&priority, &tot_id);
    if (!cnt || !tot || !pri || !sum) return LOW_PRIO;
    /* A tenant's priority is its weight; the total follows when it changes. */
    *sum += skb->weight - *pri;
    *pri = skb->weight;
    u64 vm_cnt = *cnt, tot_cnt = *tot, vm_pri = *pri, tot_pri = *sum;
    if((vm_cnt) * (tot_pri) <= (vm_pri) * (tot_cnt))
        return HIGH_PRIO;
    else return LOW_PRIO; }
