// SPDX-License-Identifier: GPL-2.0
/* The control stream of a session: write sends requests, events fill an inbox that read empties. */

#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "driver.h"

/* Bytes that may wait for a reader; a process that reads at all never leaves as many unread. */
#define INBOX_ROOM	(256 * 1024)

static struct aviary_request *send_request(struct aviary_session *session,
					   const char __user *from, size_t count)
{
	struct aviary_request *request = aviary_request_new(session, AVIARY_SEND, count);

	if (!request)
		return ERR_PTR(-ENOMEM);
	if (copy_from_user(request->payload, from, count)) {
		aviary_request_put(request);
		return ERR_PTR(-EFAULT);
	}
	request->header.count = cpu_to_le32(count);
	return request;
}

/* Sends a message. The first one opens the session and registers the chunks that exist by then. */
static int stream_send(struct aviary_session *session, struct aviary_request *request)
{
	int err;

	if (aviary_session_over(session))
		return -EPIPE;
	if (!session->opened) {
		err = aviary_session_open(session);
		if (err)
			return err;
	}
	aviary_request_send(session->device, request);
	err = aviary_request_wait(request);
	if (!err && !session->greeted)
		err = aviary_chunks_register(session);
	return err;
}

ssize_t aviary_stream_write(struct file *file, const char __user *from, size_t count,
			    loff_t *position)
{
	struct aviary_session *session = file->private_data;
	struct aviary_request *request;
	int err;

	if (!aviary_session_owned(session))
		return -EPERM;
	if (!count)
		return 0;
	if (count > AVIARY_MOST_SENT)
		return -EMSGSIZE;
	request = send_request(session, from, count);
	if (IS_ERR(request))
		return PTR_ERR(request);
	err = mutex_lock_killable(&session->write_lock);
	if (!err) {
		err = stream_send(session, request);
		/* The stream is useless once a part of it may be missing. */
		if (err && session->opened)
			aviary_session_end(session);
		mutex_unlock(&session->write_lock);
	}
	aviary_request_put(request);
	return err ? err : count;
}

/**
 * aviary_stream_receive - queues bytes of the API server for readers
 * @session: the session
 * @data: the bytes, which are copied so that a process that does not read keeps no buffer
 * @count: number of bytes
 *
 * Called in interrupts.
 */
void aviary_stream_receive(struct aviary_session *session, const void *data, size_t count)
{
	struct aviary_message *message;
	unsigned long flags;
	bool room;

	if (!count || aviary_session_over(session))
		return;
	message = kmalloc(sizeof(*message) + count, GFP_ATOMIC | __GFP_NOWARN);
	if (message) {
		message->count = count;
		message->taken = 0;
		memcpy(message->data, data, count);
	}
	spin_lock_irqsave(&session->inbox_lock, flags);
	room = message && session->inbox_bytes + count <= INBOX_ROOM;
	if (room) {
		list_add_tail(&message->link, &session->inbox);
		session->inbox_bytes += count;
	}
	spin_unlock_irqrestore(&session->inbox_lock, flags);
	if (room) {
		wake_up_all(&session->inbox_wait);
		return;
	}
	pr_warn_ratelimited("session %u: no memory, or its process does not read: it ends\n",
			    session->number);
	kfree(message);
	aviary_session_end(session);
}

static bool inbox_empty(struct aviary_session *session)
{
	return list_empty_careful(&session->inbox);
}

/* Takes the first message out of the inbox, because a copy to user space may sleep. */
static struct aviary_message *inbox_take(struct aviary_session *session)
{
	struct aviary_message *message;

	spin_lock_irq(&session->inbox_lock);
	message = list_first_entry_or_null(&session->inbox, struct aviary_message, link);
	if (message) {
		list_del_init(&message->link);
		session->inbox_bytes -= message->count - message->taken;
	}
	spin_unlock_irq(&session->inbox_lock);
	return message;
}

static void inbox_give_back(struct aviary_session *session, struct aviary_message *message)
{
	spin_lock_irq(&session->inbox_lock);
	list_add(&message->link, &session->inbox);
	session->inbox_bytes += message->count - message->taken;
	spin_unlock_irq(&session->inbox_lock);
}

/* Called with the readers' lock, so that a partly read message precedes the next one. */
static ssize_t stream_take(struct aviary_session *session, char __user *to, size_t count)
{
	struct aviary_message *message;
	size_t done = 0, part;

	while (done < count) {
		message = inbox_take(session);
		if (!message)
			break;
		part = min(count - done, message->count - message->taken);
		if (copy_to_user(to + done, message->data + message->taken, part)) {
			inbox_give_back(session, message);
			return done ? done : -EFAULT;
		}
		done += part;
		message->taken += part;
		if (message->taken < message->count)
			inbox_give_back(session, message);
		else
			kfree(message);
	}
	return done;
}

ssize_t aviary_stream_read(struct file *file, char __user *to, size_t count, loff_t *position)
{
	struct aviary_session *session = file->private_data;
	ssize_t done;

	if (!count)
		return 0;
	for (;;) {
		if (mutex_lock_interruptible(&session->read_lock))
			return -ERESTARTSYS;
		done = stream_take(session, to, count);
		mutex_unlock(&session->read_lock);
		if (done)
			return done;
		if (aviary_session_over(session)) {
			/* Messages that arrived before the end are read first. */
			if (inbox_empty(session))
				return 0;
			continue;
		}
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(session->inbox_wait, !inbox_empty(session) ||
					     aviary_session_over(session)))
			return -ERESTARTSYS;
	}
}

__poll_t aviary_stream_poll(struct file *file, struct poll_table_struct *table)
{
	struct aviary_session *session = file->private_data;
	__poll_t ready = 0;

	poll_wait(file, &session->inbox_wait, table);
	if (!inbox_empty(session))
		ready |= EPOLLIN | EPOLLRDNORM;
	if (aviary_session_over(session))
		ready |= EPOLLIN | EPOLLRDNORM | EPOLLHUP | EPOLLRDHUP;
	else
		ready |= EPOLLOUT | EPOLLWRNORM;
	return ready;
}

void aviary_stream_free(struct aviary_session *session)
{
	struct aviary_message *message, *next;

	list_for_each_entry_safe(message, next, &session->inbox, link)
		kfree(message);
}
