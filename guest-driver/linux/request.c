// SPDX-License-Identifier: GPL-2.0
/* The control queue: requests and their answers, in any order. */

#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "driver.h"

/**
 * aviary_request_new - makes a request with room for @payload bytes
 * @session: the session of the request, or NULL
 * @type: type for the header
 * @payload: bytes that follow the header
 *
 * The buffers are one allocation, because queues take physically contiguous memory.
 */
struct aviary_request *aviary_request_new(struct aviary_session *session,
					  enum aviary_request_type type, size_t payload)
{
	struct aviary_request *request;

	request = kzalloc(sizeof(*request) + payload, GFP_KERNEL);
	if (!request)
		return NULL;
	kref_init(&request->kref);
	INIT_LIST_HEAD(&request->link);
	init_completion(&request->settled);
	request->out = sizeof(request->header) + payload;
	request->in = AVIARY_SHORT_ANSWER;
	request->header.type = cpu_to_le32(type);
	if (session) {
		aviary_session_get(session);
		request->session = session;
		request->header.session = cpu_to_le32(session->number);
	}
	return request;
}

static void request_free(struct kref *kref)
{
	struct aviary_request *request = container_of(kref, struct aviary_request, kref);

	if (request->session)
		aviary_session_put(request->session);
	kfree(request);
}

void aviary_request_put(struct aviary_request *request)
{
	kref_put(&request->kref, request_free);
}

/* Adds a request to the queue; -ENOSPC if it is full, another error if the queue is broken. */
static int request_add(struct aviary_device *device, struct aviary_request *request)
{
	struct scatterlist out, in, *list[] = { &out, &in };
	int err;

	/* The header and the payload are adjacent. */
	BUILD_BUG_ON(offsetof(struct aviary_request, payload) !=
		     offsetof(struct aviary_request, header) + sizeof(struct aviary_header));
	sg_init_one(&out, &request->header, request->out);
	sg_init_one(&in, &request->answer, request->in);
	err = virtqueue_add_sgs(device->control, list, 1, 1, request, GFP_ATOMIC);
	if (!err)
		list_add_tail(&request->link, &device->flying);
	return err;
}

/* Called with the device's lock. */
static void request_settle(struct aviary_request *request, int error)
{
	list_del_init(&request->link);
	atomic_long_dec(&aviary_totals.requests);
	if (!request->abandoned)
		request->error = error;
	complete_all(&request->settled);
}

/* Called without the device's lock: the answer's handler may send further requests. */
static void request_finish(struct aviary_device *device, struct aviary_request *request)
{
	if (request->answered)
		request->answered(device, request);
	aviary_request_put(request);
}

/**
 * aviary_request_send - sends a request to the device, or fails it
 * @device: the device
 * @request: the request; the queue has a reference until the answer
 *
 * Does not sleep. A full queue only delays: the number of requests is bounded by the number of
 * waiting threads, plus one for each session that ends.
 */
void aviary_request_send(struct aviary_device *device, struct aviary_request *request)
{
	unsigned long flags;
	bool refused = false, kick = false;

	kref_get(&request->kref);
	if (request->session)
		atomic64_inc(&request->session->requests);
	atomic_long_inc(&aviary_totals.requests);

	spin_lock_irqsave(&device->lock, flags);
	if (device->state == AVIARY_GONE ||
	    (!request->must && (device->lost || device->state == AVIARY_STOPPING))) {
		request_settle(request, -ENODEV);
		refused = true;
	} else if (device->state == AVIARY_STOPPING || !list_empty(&device->backlog)) {
		list_add_tail(&request->link, &device->backlog);
	} else {
		int err = request_add(device, request);

		if (err)
			list_add_tail(&request->link, &device->backlog);
		else
			kick = virtqueue_kick_prepare(device->control);
		/*
		 * Answers make room; without a request in flight the backlog would never be sent.
		 */
		if (err && err != -ENOSPC)
			aviary_device_reset();
	}
	/* Called with the lock: the queue must not vanish before it is notified. */
	if (kick)
		virtqueue_notify(device->control);
	spin_unlock_irqrestore(&device->lock, flags);

	if (refused)
		request_finish(device, request);
}

/**
 * aviary_request_wait - waits for the answer
 * @request: the request, which was sent
 *
 * Return: 0, the error that the device answered, -ENODEV if it was lost, -EINTR if the process was
 * killed meanwhile: then the request is still in flight.
 */
int aviary_request_wait(struct aviary_request *request)
{
	if (wait_for_completion_killable(&request->settled))
		return -EINTR;
	return request->error;
}

/**
 * aviary_request_call - sends a request, waits for its answer, puts it
 * @session: the session of the request
 * @request: may be NULL, which is -ENOMEM
 */
int aviary_request_call(struct aviary_session *session, struct aviary_request *request)
{
	int err;

	if (!request)
		return -ENOMEM;
	aviary_request_send(session->device, request);
	err = aviary_request_wait(request);
	aviary_request_put(request);
	return err;
}

/* The answer's status as a negative errno value; -EIO if it is malformed. */
static int answer_error(const struct aviary_request *request, unsigned int length)
{
	u32 status = le32_to_cpu(request->answer.status);

	if (length < AVIARY_SHORT_ANSWER)
		return -EIO;
	if (status > MAX_ERRNO)
		return -EIO;
	return -(int)status;
}

/* Sends requests of the backlog: answers have made room in the queue. */
static bool backlog_send(struct aviary_device *device)
{
	struct aviary_request *request, *next;
	bool added = false;

	if (device->state != AVIARY_RUNNING)
		return false;
	list_for_each_entry_safe(request, next, &device->backlog, link) {
		list_del_init(&request->link);
		if (request_add(device, request)) {
			list_add(&request->link, &device->backlog);
			break;
		}
		added = true;
	}
	return added && virtqueue_kick_prepare(device->control);
}

void aviary_control_callback(struct virtqueue *queue)
{
	struct aviary_device *device = queue->vdev->priv;
	struct aviary_request *request, *next;
	unsigned int length;
	unsigned long flags;
	LIST_HEAD(done);

	spin_lock_irqsave(&device->lock, flags);
	if (device->state == AVIARY_GONE) {
		spin_unlock_irqrestore(&device->lock, flags);
		return;
	}
	do {
		virtqueue_disable_cb(queue);
		while ((request = virtqueue_get_buf(queue, &length))) {
			request_settle(request, answer_error(request, length));
			list_add_tail(&request->link, &done);
		}
	} while (!virtqueue_enable_cb(queue));
	if (backlog_send(device))
		virtqueue_notify(queue);
	spin_unlock_irqrestore(&device->lock, flags);

	if (unlikely(virtqueue_is_broken(queue)))
		aviary_device_reset();
	list_for_each_entry_safe(request, next, &done, link) {
		list_del_init(&request->link);
		request_finish(device, request);
	}
}

/**
 * aviary_requests_abandon - wakes all waiters of a lost device
 * @device: the device
 *
 * The device keeps the requests and may still answer them.
 */
void aviary_requests_abandon(struct aviary_device *device)
{
	struct aviary_request *request;
	unsigned long flags;

	spin_lock_irqsave(&device->lock, flags);
	list_for_each_entry(request, &device->flying, link) {
		request->abandoned = true;
		request->error = -ENODEV;
		complete_all(&request->settled);
	}
	list_for_each_entry(request, &device->backlog, link) {
		request->abandoned = true;
		request->error = -ENODEV;
		complete_all(&request->settled);
	}
	spin_unlock_irqrestore(&device->lock, flags);
}

/**
 * aviary_requests_drop - ends all requests of a device that was reset
 * @device: the device, in the state AVIARY_GONE
 */
void aviary_requests_drop(struct aviary_device *device)
{
	struct aviary_request *request, *next;
	unsigned long flags;
	LIST_HEAD(done);

	spin_lock_irqsave(&device->lock, flags);
	while (virtqueue_detach_unused_buf(device->control))
		;
	list_splice_tail_init(&device->backlog, &device->flying);
	list_for_each_entry_safe(request, next, &device->flying, link) {
		request_settle(request, -ENODEV);
		list_add_tail(&request->link, &done);
	}
	spin_unlock_irqrestore(&device->lock, flags);

	list_for_each_entry_safe(request, next, &done, link) {
		list_del_init(&request->link);
		request_finish(device, request);
	}
}
