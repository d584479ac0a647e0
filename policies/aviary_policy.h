/* Declarations for scheduling policies of Aviary. See docs/policies.md.
 *
 *     clang -target bpf -O2 -mcpu=v3 -g -c policy.c -o policy.o
 *
 * or hand the source to `aviary policy check`, which does the same.
 */
#ifndef AVIARY_POLICY_H
#define AVIARY_POLICY_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define NULL ((void *)0)
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

/* The command that waits, or the report of what was used. Read-only. */
typedef struct {
    u64 tenant;           /* never 0 */
    u64 session;
    u64 device;
    u64 weight;           /* the tenant's share is this against the sum of all weights */
    u64 priority;
    u64 now_ns;
    u64 device_time_ns;   /* used by the tenant so far */
    u64 waiting_since_ns; /* schedule: when the command came to the head of its queue */
    u64 expected_ns;      /* schedule: what it is expected to take; 0: unknown */
    u64 queued;           /* commands waiting in the session's queue */
} __sk_buff;

/* A map. Fields that are 0 mean: type counters, 4-byte keys, 8-byte values, 1024 entries, shared.
 *
 *     map_def used;
 *     map_def buckets = { .type = AVA_HASH, .key_size = 8, .value_size = sizeof(struct bucket) };
 */
struct ava_map_def {
    u32 type;
    u32 key_size;    /* 4 or 8 */
    u32 value_size;  /* a multiple of 8, up to 64 */
    u32 max_entries; /* up to 65536 */
    u32 flags;
};
#define map_def __attribute__((section("maps"), used)) struct ava_map_def

#define AVA_COUNTERS 0 /* a hash where a lookup of a new key enters zeros; NULL only when it is full */
#define AVA_HASH 1
#define AVA_ARRAY 2 /* keys 0 .. max_entries - 1, all there, zero */

#define AVA_PER_TENANT 1 /* flag: every tenant has its own entries, and room for max_entries of them */

#define AVA_ANY 0     /* map_update_elem: enter or replace */
#define AVA_NOEXIST 1 /* ... enter only */
#define AVA_EXIST 2   /* ... replace only */

/* Helpers. */
static void *(*map_lookup_elem)(const void *map, const void *key) = (void *)1;
static long (*map_update_elem)(const void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete_elem)(const void *map, const void *key) = (void *)3;
static u64 (*ktime_get_ns)(void) = (void *)5; /* the same clock as now_ns */
/* The amount of a resource in this report; 0 if it has none. */
static u64 (*load_ava_rc_amount)(const __sk_buff *skb, u32 resource) = (void *)100;

#define load_ava_vm_id(skb) ((skb)->tenant)

/* Adds n to what p points to, if it points to something. Decisions of one policy never overlap: what several maps
 * hold may be read and changed as if by one step. */
#define fetch_and_add(p, n)                          \
    ({                                               \
        __typeof__(p) ava_p_ = (p);                  \
        if (ava_p_)                                  \
            __sync_fetch_and_add(ava_p_, (n));       \
    })

/* Answers of schedule: higher runs first. */
#define HIGH_PRIO 1
#define LOW_PRIO 0
#define AVA_HOLD (-0x7fffffffffffffffLL - 1) /* not now; schedule must return s64 for it */

/* The resource of device time in nanoseconds, in every report of a command that ran. */
#define AVA_DEVICE_TIME ava_get_rc_id("device_time")

/* The number of a resource, from its name in the specification (its first 32 bytes); a constant. */
#define AVA_C_(s, i) ((u32)((i) < sizeof(s) ? (u8)(s)[(i) < sizeof(s) ? (i) : 0] : 0))
#define AVA_P_ 0x01000193u
#define AVA_4_(s, i, rest) \
    (AVA_C_(s, i) + AVA_P_ * (AVA_C_(s, i + 1) + AVA_P_ * (AVA_C_(s, i + 2) + AVA_P_ * (AVA_C_(s, i + 3) + AVA_P_ * (rest)))))
#define AVA_16_(s, i, rest) AVA_4_(s, i, AVA_4_(s, i + 4, AVA_4_(s, i + 8, AVA_4_(s, i + 12, rest))))
#define ava_get_rc_id(name) ((int)((AVA_16_(name, 0, AVA_16_(name, 16, 0u)) & 0x7fffffffu) | 1u))

#endif
