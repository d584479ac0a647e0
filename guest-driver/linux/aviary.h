/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/* The system calls of /dev/aviary for processes in a guest. See docs/virtio-aviary.md. */
#ifndef _UAPI_AVIARY_H
#define _UAPI_AVIARY_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define AVIARY_INTERFACE 1

/* Size in bytes of a chunk, the unit in which arena memory is allocated and released. */
#define AVIARY_CHUNK (256 * 1024)

struct aviary_info {
	__u32 interface;	/* AVIARY_INTERFACE */
	__u32 reserved;
	__u64 largest_arena;	/* bytes */
};

struct aviary_wait {
	__u64 offset;		/* offset of a 32-bit word in mapped arena memory */
	__s64 timeout;		/* nanoseconds; negative: none */
	__u32 expected;		/* sleeps only while the word has this value */
	__u32 reserved;
};

/* Wakes only sleepers in this guest; without the flag, those on the host. */
#define AVIARY_WAKE_LOCAL 1

struct aviary_wake {
	__u64 offset;
	__u32 flags;
	__u32 reserved;
};

/* The host may write the memory. */
#define AVIARY_PIN_WRITE 1

struct aviary_pin {
	__u64 address;		/* address of the first page, a multiple of 4096 */
	__u64 length;		/* a multiple of 4096 */
	__u64 offset;		/* offset in the arena at which the host maps it */
	__u32 flags;
	__u32 reserved;
};

struct aviary_range {
	__u64 offset;
	__u64 length;
};

/* Counters of this session, since it was opened. */
struct aviary_counters {
	__u64 requests;		/* requests on the control queue */
	__u64 kicks;		/* doorbells */
	__u64 sleeps;		/* calls of AVIARY_WAIT that slept */
	__u64 wakes;		/* events that woke a sleeper */
	__u64 pages_pinned;	/* now */
	__u64 bytes_pinned;	/* ever */
	__u64 chunks;		/* now */
	__u64 reserved;
};

#define AVIARY_INFO	_IOR(0xA7, 0, struct aviary_info)
#define AVIARY_WAIT	_IOW(0xA7, 1, struct aviary_wait)
#define AVIARY_WAKE	_IOW(0xA7, 2, struct aviary_wake)
#define AVIARY_PIN	_IOW(0xA7, 3, struct aviary_pin)
#define AVIARY_UNPIN	_IOW(0xA7, 4, struct aviary_range)
#define AVIARY_RELEASE	_IOW(0xA7, 5, struct aviary_range)
#define AVIARY_COUNTERS	_IOR(0xA7, 6, struct aviary_counters)
/* Ends the session, as the end of the process would. */
#define AVIARY_END	_IO(0xA7, 7)

#endif
