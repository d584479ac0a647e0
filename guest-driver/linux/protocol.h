/* SPDX-License-Identifier: GPL-2.0 */
/* Messages of the queues; the protocol is described in docs/virtio-aviary.md. */
#ifndef AVIARY_PROTOCOL_H
#define AVIARY_PROTOCOL_H

#include <linux/types.h>

#define AVIARY_VERSION		1
#define AVIARY_MOST_SENT	16384
#define AVIARY_EVENT_ROOM	4096

enum aviary_request_type {
	AVIARY_IDENTIFY	= 1,
	AVIARY_OPEN	= 2,
	AVIARY_CLOSE	= 3,
	AVIARY_SEND	= 4,
	AVIARY_MAP	= 5,
	AVIARY_UNMAP	= 6,
	AVIARY_PING	= 7,
};

/* Flags of AVIARY_MAP. */
#define AVIARY_MAP_WRITE	1
#define AVIARY_MAP_APPLICATION	2

struct aviary_header {
	__le32 type;
	__le32 session;
	__le32 flags;
	__le32 count;
	__le64 offset;
	__le64 length;
	__le64 value;
};

struct aviary_extent {
	__le64 address;
	__le64 length;
};

/* All answers except that to AVIARY_IDENTIFY end after `value`. */
struct aviary_answer {
	__le32 status;
	__le32 reserved;
	__le64 value;
	__le64 largest_arena;
	__le32 most_sessions;
	__le32 most_extents;
	__le64 instance;
	__le64 reserved2;
};

#define AVIARY_SHORT_ANSWER	16

enum aviary_event_type {
	AVIARY_DATA	= 1,
	AVIARY_WOKEN	= 2,
	AVIARY_CLOSED	= 3,
	AVIARY_RESET	= 4,
};

struct aviary_event {
	__le32 type;
	__le32 session;
	__le64 value;
	__le32 count;
	__le32 reserved;
	u8 data[];
};

struct aviary_bell {
	__le32 session;
	__le32 reserved;
	__le64 offset;
};

#endif
