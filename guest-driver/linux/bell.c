// SPDX-License-Identifier: GPL-2.0
/* The doorbell queue: wakes sleepers on the host. Doorbells have no answer. */

#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "driver.h"

/* Takes returned buffers back. Called with bell_lock. */
static void bells_reclaim(struct aviary_device *device)
{
	struct aviary_bell *bell;
	unsigned int length;

	while ((bell = virtqueue_get_buf(device->doorbell, &length)))
		device->bell_free[device->bells_free++] = bell;
}

/* True if a wait for a free buffer can end; asks for an interrupt if not. */
static bool bell_free(struct aviary_device *device)
{
	unsigned long flags;
	bool free;

	spin_lock_irqsave(&device->bell_lock, flags);
	if (!device->doorbell || device->lost || virtqueue_is_broken(device->doorbell)) {
		free = true;
	} else {
		bells_reclaim(device);
		free = device->bells_free || !virtqueue_enable_cb(device->doorbell);
	}
	spin_unlock_irqrestore(&device->bell_lock, flags);
	return free;
}

/* Sends a doorbell. -EAGAIN: the device has all buffers. */
static int bell_try(struct aviary_device *device, u32 session, u64 offset)
{
	struct scatterlist out;
	struct aviary_bell *bell;
	unsigned long flags;
	int err = -ENODEV;

	spin_lock_irqsave(&device->bell_lock, flags);
	if (!device->doorbell || device->lost || virtqueue_is_broken(device->doorbell))
		goto unlock;
	bells_reclaim(device);
	err = -EAGAIN;
	if (!device->bells_free)
		goto unlock;
	bell = device->bell_free[--device->bells_free];
	bell->session = cpu_to_le32(session);
	bell->offset = cpu_to_le64(offset);
	sg_init_one(&out, bell, sizeof(*bell));
	if (virtqueue_add_outbuf(device->doorbell, &out, 1, bell, GFP_ATOMIC)) {
		device->bell_free[device->bells_free++] = bell;
		goto unlock;
	}
	err = 0;
	virtqueue_kick(device->doorbell);
unlock:
	spin_unlock_irqrestore(&device->bell_lock, flags);
	return err;
}

/**
 * aviary_bell_ring - wakes the sleepers on the host at a word
 * @session: the session whose arena has the word
 * @offset: offset of the word, which the caller has cleared
 *
 * Return: 0; -EINTR if the caller was killed while the device returned no buffer.
 */
int aviary_bell_ring(struct aviary_session *session, u64 offset)
{
	struct aviary_device *device = session->device;
	int err;

	for (;;) {
		err = bell_try(device, session->number, offset);
		if (err != -EAGAIN)
			break;
		if (wait_event_killable(device->bell_wait, bell_free(device)))
			return -EINTR;
	}
	if (!err)
		atomic64_inc(&session->kicks);
	return err;
}

void aviary_bells_callback(struct virtqueue *queue)
{
	struct aviary_device *device = queue->vdev->priv;

	virtqueue_disable_cb(queue);
	wake_up_all(&device->bell_wait);
}

/* Called before the device is told that the driver is ready. */
int aviary_bells_start(struct aviary_device *device)
{
	unsigned int count = min_t(unsigned int, AVIARY_MOST_BELLS,
				   virtqueue_get_vring_size(device->doorbell));

	device->bells = kcalloc(count, sizeof(*device->bells), GFP_KERNEL);
	if (!device->bells)
		return -ENOMEM;
	while (device->bells_free < count) {
		device->bell_free[device->bells_free] = &device->bells[device->bells_free];
		device->bells_free++;
	}
	virtqueue_disable_cb(device->doorbell);
	return 0;
}

/* Called after a reset of the device. */
void aviary_bells_stop(struct aviary_device *device)
{
	struct virtqueue *queue;
	unsigned long flags;

	spin_lock_irqsave(&device->bell_lock, flags);
	queue = device->doorbell;
	device->doorbell = NULL;
	while (queue && virtqueue_detach_unused_buf(queue))
		;
	device->bells_free = 0;
	spin_unlock_irqrestore(&device->bell_lock, flags);
	wake_up_all(&device->bell_wait);
	kfree(device->bells);
	device->bells = NULL;
}
