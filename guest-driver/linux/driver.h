/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The driver's own structures.
 *
 * Locks, outermost first: session->write_lock or session->release_lock or the mmap_lock of a fault;
 * session->chunk_lock; the lock of session->chunks; device->lock. The last two are taken in
 * interrupts, as are events_lock (outside of them), bell_lock, inbox_lock and that of the table of
 * sessions. Memory of processes may be touched under read_lock. pin_lock has no other inside.
 */
#ifndef AVIARY_DRIVER_H
#define AVIARY_DRIVER_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "aviary.h"
#include "protocol.h"

#define AVIARY_CHUNK_PAGES	(AVIARY_CHUNK / PAGE_SIZE)
#define AVIARY_BUCKETS_BITS	5
#define AVIARY_MOST_EVENTS	64
#define AVIARY_MOST_BELLS	256
#define AVIARY_MOST_EXTENTS	1020

/* Totals of the whole driver; files below /sys/class/misc/aviary. */
struct aviary_totals {
	atomic_long_t sessions;
	atomic_long_t chunks;
	atomic_long_t pages_pinned;
	atomic_long_t requests;
};

extern struct aviary_totals aviary_totals;
extern unsigned int aviary_patience_ms;
extern unsigned long aviary_largest_arena;

enum aviary_state {
	AVIARY_RUNNING,
	/* The device gets no more requests; it will be reset. */
	AVIARY_STOPPING,
	/* The device was reset: it touches no memory of the driver. */
	AVIARY_GONE,
};

struct aviary_device {
	struct kref kref;
	struct virtio_device *vdev;
	struct workqueue_struct *work;

	/* Guards the control queue and the state that follows from its answers. */
	spinlock_t lock;
	enum aviary_state state;
	struct virtqueue *control;
	struct list_head flying;	/* requests that the device has */
	struct list_head backlog;	/* requests for which the queue had no room */
	bool identified;
	bool refused;			/* the driver cannot use this device */
	bool lost;			/* did not answer in time */
	bool pinged;			/* a PING, or the IDENTIFY, is in flight */
	unsigned int silent_ms;		/* time since the PING or IDENTIFY, in ms */
	u64 instance;
	u64 largest_arena;
	u32 most_extents;
	wait_queue_head_t changed;
	struct delayed_work watch;

	/* All sessions, and the number of those that the device must be told to close. */
	struct xarray sessions;
	atomic_t connected;

	spinlock_t events_lock;	/* guards the queue and the order of its messages */
	struct virtqueue *events;
	unsigned int event_buffers;
	void *event_buffer[AVIARY_MOST_EVENTS];

	spinlock_t bell_lock;	/* guards the queue and the free buffers */
	struct virtqueue *doorbell;
	struct aviary_bell *bells;
	unsigned int bells_free;
	struct aviary_bell *bell_free[AVIARY_MOST_BELLS];
	wait_queue_head_t bell_wait;
};

/* device.c */
struct aviary_device *aviary_device_start(struct virtio_device *vdev);
void aviary_device_stop(struct aviary_device *device);
void aviary_device_put(struct aviary_device *device);
int aviary_device_wait(struct aviary_device *device);
void aviary_device_watch(struct aviary_device *device);
void aviary_device_instance(struct aviary_device *device, u64 instance);

/* main.c */
struct aviary_device *aviary_device_get(void);
bool aviary_device_lock(struct aviary_device *device);
void aviary_device_unlock(void);
void aviary_device_reset(void);

/* file.c */
extern const struct file_operations aviary_file_operations;

struct aviary_session;

/*
 * A request belongs to its waiter and, while it is in flight, to the queue: a waiter that is killed
 * leaves memory behind that the device may still read and write.
 */
struct aviary_request {
	struct kref kref;
	struct list_head link;
	struct completion settled;
	int error;
	bool abandoned;		/* the waiter was told that the device is lost */
	bool must;		/* sent also while the device is lost */
	struct aviary_session *session;
	unsigned long index;
	size_t out;
	size_t in;
	/* Called in interrupts, when the device no longer uses the request. */
	void (*answered)(struct aviary_device *device, struct aviary_request *request);

	struct aviary_answer answer ____cacheline_aligned;
	struct aviary_header header ____cacheline_aligned;
	u8 payload[];
};

/* request.c */
struct aviary_request *aviary_request_new(struct aviary_session *session,
					  enum aviary_request_type type, size_t payload);
void aviary_request_put(struct aviary_request *request);
void aviary_request_send(struct aviary_device *device, struct aviary_request *request);
int aviary_request_wait(struct aviary_request *request);
int aviary_request_call(struct aviary_session *session, struct aviary_request *request);
void aviary_requests_abandon(struct aviary_device *device);
void aviary_requests_drop(struct aviary_device *device);
void aviary_control_callback(struct virtqueue *queue);

/* event.c */
int aviary_events_start(struct aviary_device *device);
void aviary_events_stop(struct aviary_device *device);
void aviary_events_callback(struct virtqueue *queue);

/* bell.c */
int aviary_bells_start(struct aviary_device *device);
void aviary_bells_stop(struct aviary_device *device);
void aviary_bells_callback(struct virtqueue *queue);
int aviary_bell_ring(struct aviary_session *session, u64 offset);

enum aviary_chunk_state {
	/* No entry in the session's table. */
	AVIARY_CHUNK_ABSENT,
	/* Pages are being allocated: the entry is not a chunk yet. */
	AVIARY_CHUNK_MAKING,
	/* Not registered: the API server was not greeted yet. */
	AVIARY_CHUNK_LOCAL,
	/* MAP is in flight. */
	AVIARY_CHUNK_PENDING,
	AVIARY_CHUNK_READY,
	/* UNMAP is in flight, or not needed. */
	AVIARY_CHUNK_LEAVING,
};

struct aviary_chunk {
	enum aviary_chunk_state state;
	bool registered;
	struct page *pages[];
};

struct aviary_message {
	struct list_head link;
	size_t count;
	size_t taken;
	u8 data[];
};

struct aviary_session {
	struct kref kref;
	struct aviary_device *device;
	u32 number;
	struct pid *opener;
	u64 arena;			/* bytes; 0 until mapped */
	unsigned long mapped;

	struct mutex write_lock;	/* held while a message is sent */
	/* `over`, `opened` and the states of chunks are guarded by the lock of `chunks`. */
	bool over;
	bool opened;			/* the device knows the session */
	bool greeted;			/* chunks are registered from now on */
	struct xarray chunks;
	struct mutex chunk_lock;	/* keeps chunks alive and their mapping unchanged */
	struct mutex release_lock;	/* held while chunks are released */
	wait_queue_head_t chunk_wait;
	/* Mappings of this session's file only, so that pages can be removed from them. */
	struct address_space mapping;

	struct mutex pin_lock;	/* guards the list */
	struct list_head pins;

	wait_queue_head_t sleepers[1 << AVIARY_BUCKETS_BITS];

	struct mutex read_lock;	/* held by a reader */
	spinlock_t inbox_lock;	/* guards the list and its size */
	struct list_head inbox;
	size_t inbox_bytes;
	wait_queue_head_t inbox_wait;

	struct aviary_request *close;
	struct work_struct end_work;
	struct work_struct free_work;

	atomic64_t requests;
	atomic64_t kicks;
	atomic64_t sleeps;
	atomic64_t wakes;
	atomic64_t pages_pinned;
	atomic64_t bytes_pinned;
	atomic64_t chunks_now;
};

/* session.c */
struct aviary_session *aviary_session_new(struct aviary_device *device, struct inode *inode);
struct aviary_session *aviary_session_find(struct aviary_device *device, u32 number);
void aviary_session_get(struct aviary_session *session);
void aviary_session_put(struct aviary_session *session);
bool aviary_session_over(struct aviary_session *session);
bool aviary_session_owned(struct aviary_session *session);
int aviary_session_open(struct aviary_session *session);
void aviary_session_end(struct aviary_session *session);
void aviary_sessions_end(struct aviary_device *device);
u64 aviary_session_largest(struct aviary_session *session);

/* stream.c */
ssize_t aviary_stream_write(struct file *file, const char __user *from, size_t count,
			    loff_t *position);
ssize_t aviary_stream_read(struct file *file, char __user *to, size_t count, loff_t *position);
__poll_t aviary_stream_poll(struct file *file, struct poll_table_struct *table);
void aviary_stream_receive(struct aviary_session *session, const void *data, size_t count);
void aviary_stream_free(struct aviary_session *session);

/* chunk.c */
int aviary_chunk_make(struct aviary_session *session, unsigned long index);
enum aviary_chunk_state aviary_chunk_state(struct aviary_session *session, unsigned long index);
int aviary_chunks_register(struct aviary_session *session);
long aviary_chunks_release(struct aviary_session *session, const struct aviary_range *range);
void aviary_chunks_free(struct aviary_session *session);
struct page *aviary_chunk_page(struct aviary_session *session, u64 offset);

/* mapping.c */
int aviary_mapping(struct file *file, struct vm_area_struct *vma);

/* range.c */
struct aviary_request *aviary_map_request(struct aviary_session *session, u64 offset,
					  struct page **pages, unsigned long count, u32 flags,
					  unsigned long *taken);
int aviary_unmap(struct aviary_session *session, u64 offset, u64 length);

/* pin.c */
long aviary_pin(struct aviary_session *session, const struct aviary_pin *pin);
long aviary_unpin(struct aviary_session *session, const struct aviary_range *range);
void aviary_pins_free(struct aviary_session *session);

/* wait.c */
long aviary_wait(struct aviary_session *session, const struct aviary_wait *wait);
bool aviary_wake(struct aviary_session *session, u64 offset);
void aviary_wake_all(struct aviary_session *session);

#endif
