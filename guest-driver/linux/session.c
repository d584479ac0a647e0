// SPDX-License-Identifier: GPL-2.0
/*
 * A session's life: open, known to the device, over, freed.
 *
 * The device's table keeps a session until the device has confirmed that it no longer touches the
 * session's memory, or was reset.
 */

#include <linux/cred.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>

#include "driver.h"

/* A number is used once per boot, even if the driver is reloaded. */
static u32 next_number;
static DEFINE_SPINLOCK(number_lock);

/* A new number; 0: none is left. */
static u32 session_number(void)
{
	u32 number;

	spin_lock(&number_lock);
	/*
	 * Sessions are opened at less than one per millisecond since the boot, so this number is
	 * new.
	 */
	if (!next_number)
		next_number = max_t(u32, 1, ktime_to_ms(ktime_get_boottime()));
	number = next_number == U32_MAX ? 0 : next_number++;
	spin_unlock(&number_lock);
	return number;
}

static const struct address_space_operations no_operations;

/* Mappings of this file alone, although all files of the device share an inode. */
static void mapping_init(struct address_space *mapping, struct inode *inode)
{
	address_space_init_once(mapping);
	mapping->host = inode;
	mapping->a_ops = &no_operations;
	mapping_set_gfp_mask(mapping, GFP_KERNEL);
}

static void session_end_work(struct work_struct *work);
static void session_free_work(struct work_struct *work);

static void session_closed(struct aviary_device *device, struct aviary_request *request)
{
	queue_work(device->work, &request->session->free_work);
}

/**
 * aviary_session_new - makes a session, which the device does not know yet
 * @device: the device, which must not change meanwhile
 * @inode: inode of the file
 */
struct aviary_session *aviary_session_new(struct aviary_device *device, struct inode *inode)
{
	struct aviary_session *session;
	unsigned int i;
	int err;

	session = kzalloc(sizeof(*session), GFP_KERNEL_ACCOUNT);
	if (!session)
		return ERR_PTR(-ENOMEM);
	kref_init(&session->kref);
	kref_get(&device->kref);
	session->device = device;
	session->opener = get_pid(task_tgid(current));
	mutex_init(&session->write_lock);
	mutex_init(&session->chunk_lock);
	mutex_init(&session->release_lock);
	mutex_init(&session->pin_lock);
	mutex_init(&session->read_lock);
	spin_lock_init(&session->inbox_lock);
	xa_init_flags(&session->chunks, XA_FLAGS_LOCK_IRQ);
	init_waitqueue_head(&session->chunk_wait);
	init_waitqueue_head(&session->inbox_wait);
	for (i = 0; i < ARRAY_SIZE(session->sleepers); i++)
		init_waitqueue_head(&session->sleepers[i]);
	INIT_LIST_HEAD(&session->pins);
	INIT_LIST_HEAD(&session->inbox);
	INIT_WORK(&session->end_work, session_end_work);
	INIT_WORK(&session->free_work, session_free_work);
	mapping_init(&session->mapping, inode);

	err = -ENOSPC;
	session->number = session_number();
	if (!session->number)
		goto put;
	/* Allocated in advance, so that lack of memory cannot prevent the close. */
	err = -ENOMEM;
	session->close = aviary_request_new(session, AVIARY_CLOSE, 0);
	if (!session->close)
		goto put;
	session->close->must = true;
	session->close->answered = session_closed;
	aviary_session_get(session);
	err = xa_insert_irq(&device->sessions, session->number, session, GFP_KERNEL);
	if (err) {
		aviary_session_put(session);
		goto close;
	}
	atomic_long_inc(&aviary_totals.sessions);
	return session;

close:
	aviary_request_put(session->close);
put:
	aviary_session_put(session);
	return ERR_PTR(err);
}

/* Also called in interrupts: everything that needs to sleep was freed before. */
static void session_free(struct kref *kref)
{
	struct aviary_session *session = container_of(kref, struct aviary_session, kref);

	aviary_stream_free(session);
	xa_destroy(&session->chunks);
	put_pid(session->opener);
	aviary_device_put(session->device);
	kfree(session);
}

void aviary_session_get(struct aviary_session *session)
{
	kref_get(&session->kref);
}

void aviary_session_put(struct aviary_session *session)
{
	kref_put(&session->kref, session_free);
}

/* Also called in interrupts. NULL: no session has this number. */
struct aviary_session *aviary_session_find(struct aviary_device *device, u32 number)
{
	struct aviary_session *session;
	unsigned long flags;

	xa_lock_irqsave(&device->sessions, flags);
	session = xa_load(&device->sessions, number);
	if (session)
		aviary_session_get(session);
	xa_unlock_irqrestore(&device->sessions, flags);
	return session;
}

bool aviary_session_over(struct aviary_session *session)
{
	return READ_ONCE(session->over);
}

/* True if this process opened the session. */
bool aviary_session_owned(struct aviary_session *session)
{
	return task_tgid(current) == session->opener;
}

/* Largest size of an arena in bytes. */
u64 aviary_session_largest(struct aviary_session *session)
{
	u64 largest = session->device->largest_arena;
	u64 parameter = READ_ONCE(aviary_largest_arena);

	return parameter ? min(largest, parameter) : largest;
}

static struct aviary_request *open_request(struct aviary_session *session)
{
	char name[TASK_COMM_LEN];
	struct aviary_request *request;
	size_t length;

	get_task_comm(name, current->group_leader);
	length = strnlen(name, sizeof(name));
	request = aviary_request_new(session, AVIARY_OPEN, length);
	if (!request)
		return NULL;
	memcpy(request->payload, name, length);
	request->header.count = cpu_to_le32(length);
	request->header.value = cpu_to_le64(task_tgid_nr(current));
	request->header.offset = cpu_to_le64(current->group_leader->start_time);
	request->header.length = cpu_to_le64(from_kuid(&init_user_ns, current_uid()));
	return request;
}

/**
 * aviary_session_open - tells the device of the session
 * @session: the session, with its write_lock held
 */
int aviary_session_open(struct aviary_session *session)
{
	struct aviary_device *device = session->device;
	struct aviary_request *request = open_request(session);
	int err;

	if (!request)
		return -ENOMEM;
	/* Sent before any CLOSE, which the end of the session sends only if `opened` is set. */
	xa_lock_irq(&session->chunks);
	err = session->over ? -EPIPE : 0;
	if (!err) {
		session->opened = true;
		atomic_inc(&device->connected);
		aviary_request_send(device, request);
	}
	xa_unlock_irq(&session->chunks);
	if (!err) {
		aviary_device_watch(device);
		err = aviary_request_wait(request);
	}
	if (!err)
		aviary_device_instance(device, le64_to_cpu(request->answer.value));
	aviary_request_put(request);
	return err;
}

/**
 * aviary_session_end - ends a session for its process and tells the device
 * @session: the session, which may be over already
 *
 * May be called in interrupts.
 */
void aviary_session_end(struct aviary_session *session)
{
	unsigned long flags;
	bool first;

	/*
	 * Under the lock, because the code that stops the device ends all sessions before it
	 * destroys the workqueue, and must not find a session that is over and whose work is not
	 * queued yet. The table's reference lasts until this work has led to free_work.
	 */
	xa_lock_irqsave(&session->chunks, flags);
	first = !session->over;
	WRITE_ONCE(session->over, true);
	if (first)
		queue_work(session->device->work, &session->end_work);
	xa_unlock_irqrestore(&session->chunks, flags);
	if (!first)
		return;
	aviary_wake_all(session);
	wake_up_all(&session->chunk_wait);
	wake_up_all(&session->inbox_wait);
}

static void session_end_work(struct work_struct *work)
{
	struct aviary_session *session = container_of(work, struct aviary_session, end_work);

	if (session->opened)
		aviary_request_send(session->device, session->close);
	else
		queue_work(session->device->work, &session->free_work);
}

/* Called when the device no longer uses the session's memory. */
static void session_free_work(struct work_struct *work)
{
	struct aviary_session *session = container_of(work, struct aviary_session, free_work);
	struct aviary_device *device = session->device;

	aviary_chunks_free(session);
	aviary_pins_free(session);
	if (session->opened)
		atomic_dec(&device->connected);
	wake_up_all(&device->changed);
	aviary_request_put(session->close);
	xa_erase_irq(&device->sessions, session->number);
	atomic_long_dec(&aviary_totals.sessions);
	aviary_session_put(session);
}

void aviary_sessions_end(struct aviary_device *device)
{
	struct aviary_session *session;
	unsigned long number;

	xa_for_each(&device->sessions, number, session) {
		/* The session may have been freed since the table was read. */
		session = aviary_session_find(device, number);
		if (session) {
			aviary_session_end(session);
			aviary_session_put(session);
		}
	}
}
