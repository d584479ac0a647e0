// SPDX-License-Identifier: GPL-2.0
/* The events queue: messages of the device that answer no request. */

#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "driver.h"

static int event_offer(struct aviary_device *device, void *buffer)
{
	struct scatterlist in;

	sg_init_one(&in, buffer, AVIARY_EVENT_ROOM);
	return virtqueue_add_inbuf(device->events, &in, 1, buffer, GFP_ATOMIC);
}

static void event_of_session(struct aviary_device *device, const struct aviary_event *event)
{
	struct aviary_session *session = aviary_session_find(device, le32_to_cpu(event->session));

	if (!session)
		return;
	switch (le32_to_cpu(event->type)) {
	case AVIARY_DATA:
		aviary_stream_receive(session, event->data, le32_to_cpu(event->count));
		break;
	case AVIARY_WOKEN:
		if (aviary_wake(session, le64_to_cpu(event->value)))
			atomic64_inc(&session->wakes);
		break;
	case AVIARY_CLOSED:
		aviary_session_end(session);
		break;
	}
	aviary_session_put(session);
}

static void event_handle(struct aviary_device *device, const struct aviary_event *event,
			 unsigned int length)
{
	if (length < sizeof(*event) || length > AVIARY_EVENT_ROOM ||
	    le32_to_cpu(event->count) > length - sizeof(*event)) {
		pr_warn_ratelimited("the device sent an event of %u bytes that is not whole\n",
				    length);
		return;
	}
	if (le32_to_cpu(event->type) == AVIARY_RESET)
		aviary_device_instance(device, le64_to_cpu(event->value));
	else
		event_of_session(device, event);
}

void aviary_events_callback(struct virtqueue *queue)
{
	struct aviary_device *device = queue->vdev->priv;
	unsigned int length;
	unsigned long flags;
	bool offered = false;
	void *buffer;

	/*
	 * Interrupts of one queue are handled one after the other, which keeps the order of DATA.
	 */
	spin_lock_irqsave(&device->events_lock, flags);
	while (device->events) {
		virtqueue_disable_cb(queue);
		while ((buffer = virtqueue_get_buf(queue, &length))) {
			event_handle(device, buffer, length);
			if (!event_offer(device, buffer))
				offered = true;
		}
		if (virtqueue_enable_cb(queue))
			break;
	}
	if (offered)
		virtqueue_kick(queue);
	spin_unlock_irqrestore(&device->events_lock, flags);
	if (unlikely(virtqueue_is_broken(queue)))
		aviary_device_reset();
}

/* Called before the device is told that the driver is ready. */
int aviary_events_start(struct aviary_device *device)
{
	unsigned int wanted = min_t(unsigned int, AVIARY_MOST_EVENTS,
				    virtqueue_get_vring_size(device->events));

	while (device->event_buffers < wanted) {
		void *buffer = kmalloc(AVIARY_EVENT_ROOM, GFP_KERNEL);

		if (!buffer)
			return -ENOMEM;
		device->event_buffer[device->event_buffers++] = buffer;
		if (event_offer(device, buffer))
			break;
	}
	return 0;
}

/* Called after a reset of the device. */
void aviary_events_stop(struct aviary_device *device)
{
	struct virtqueue *queue;
	unsigned long flags;

	spin_lock_irqsave(&device->events_lock, flags);
	queue = device->events;
	device->events = NULL;
	while (queue && virtqueue_detach_unused_buf(queue))
		;
	spin_unlock_irqrestore(&device->events_lock, flags);
	while (device->event_buffers)
		kfree(device->event_buffer[--device->event_buffers]);
}
