/* Proportional share of device time, after start-time fair queueing: each tenant has a virtual time that grows with
 * its used time divided by its weight; the lowest goes first. A tenant that returns from a pause starts at the time of those that
 * ran meanwhile: idling saves nothing up, and costs nothing. */
#include "aviary_policy.h"

map_def virtual_time = { .type = AVA_COUNTERS, .key_size = 8, .max_entries = 4096 };
map_def device_clock = { .type = AVA_COUNTERS, .key_size = 8, .max_entries = 64 };

/* Virtual time has 1024 steps for a nanosecond at weight 1. */
#define SCALE 1024

int consume(__sk_buff *skb) {
    u64 tenant = load_ava_vm_id(skb), device = skb->device;
    u64 *mine = map_lookup_elem(&virtual_time, &tenant), *clock = map_lookup_elem(&device_clock, &device);
    u64 weight = skb->weight;
    if (!mine || !clock)
        return 0;
    if (!weight)
        weight = 1;
    u64 start = *mine > *clock ? *mine : *clock;
    /* The device's clock is the start of the command that ran last. */
    *clock = start;
    *mine = start + load_ava_rc_amount(skb, AVA_DEVICE_TIME) * SCALE / weight;
    return 0;
}

s64 schedule(__sk_buff *skb) {
    u64 tenant = load_ava_vm_id(skb), device = skb->device;
    u64 *mine = map_lookup_elem(&virtual_time, &tenant), *clock = map_lookup_elem(&device_clock, &device);
    if (!mine || !clock)
        return 0;
    return -(s64)(*mine > *clock ? *mine : *clock);
}
