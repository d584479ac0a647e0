// SPDX-License-Identifier: GPL-2.0
/* One virtio device: its queues, its identity, its liveness. */

#include <linux/jiffies.h>
#include <linux/slab.h>

#include "compat.h"
#include "driver.h"

/* Interval in ms between two pings, and between two checks for an overdue answer. */
#define PING_INTERVAL_MS	200U
/* Time in ms for API servers to let go of sessions' memory: they need at most 1500. */
#define CLOSE_PATIENCE_MS	3000U
/* Time in ms for the first answer: a device that has never answered may still be starting. */
#define FIRST_PATIENCE_MS	2000U

static unsigned int patience_ms(const struct aviary_device *device)
{
	return device->identified ? aviary_patience_ms : max(aviary_patience_ms, FIRST_PATIENCE_MS);
}

static void device_free(struct kref *kref)
{
	struct aviary_device *device = container_of(kref, struct aviary_device, kref);

	xa_destroy(&device->sessions);
	kfree(device);
}

void aviary_device_put(struct aviary_device *device)
{
	kref_put(&device->kref, device_free);
}

/* Notes that the device answered. */
static void device_alive(struct aviary_device *device)
{
	unsigned long flags;
	bool back;

	spin_lock_irqsave(&device->lock, flags);
	back = device->lost && device->state == AVIARY_RUNNING;
	device->pinged = false;
	device->lost = false;
	spin_unlock_irqrestore(&device->lock, flags);
	wake_up_all(&device->changed);
	if (back)
		pr_info("the device answers again\n");
}

static void ping_answered(struct aviary_device *device, struct aviary_request *request)
{
	if (request->error != -ENODEV || request->abandoned)
		device_alive(device);
}

static bool identity_usable(const struct aviary_request *request)
{
	const struct aviary_answer *answer = &request->answer;

	if (request->error && !request->abandoned) {
		pr_err("the device refused to identify itself: error %d\n", -request->error);
		return false;
	}
	if (le32_to_cpu(answer->status) || !le64_to_cpu(answer->value)) {
		pr_err("the device speaks no version of the protocol that this driver knows (%u)\n",
		       AVIARY_VERSION);
		return false;
	}
	if (le32_to_cpu(answer->most_extents) < AVIARY_CHUNK_PAGES) {
		pr_err("the device takes %u extents of memory at once, at least %lu are needed\n",
		       le32_to_cpu(answer->most_extents), AVIARY_CHUNK_PAGES);
		return false;
	}
	return true;
}

static void identify_answered(struct aviary_device *device, struct aviary_request *request)
{
	const struct aviary_answer *answer = &request->answer;
	unsigned long flags;
	bool usable;

	if (READ_ONCE(device->state) == AVIARY_GONE)
		return;
	usable = identity_usable(request);
	spin_lock_irqsave(&device->lock, flags);
	if (usable) {
		device->instance = le64_to_cpu(answer->instance);
		device->largest_arena = le64_to_cpu(answer->largest_arena);
		device->most_extents = min_t(u32, le32_to_cpu(answer->most_extents),
					     AVIARY_MOST_EXTENTS);
		device->identified = true;
	} else {
		device->refused = true;
	}
	spin_unlock_irqrestore(&device->lock, flags);
	device_alive(device);
}

/* Sends a request whose answer shows that the device is alive. */
static int device_ask(struct aviary_device *device, enum aviary_request_type type)
{
	struct aviary_request *request = aviary_request_new(NULL, type, 0);

	if (!request)
		return -ENOMEM;
	request->must = true;
	request->answered = ping_answered;
	if (type == AVIARY_IDENTIFY) {
		request->in = sizeof(request->answer);
		request->header.value = cpu_to_le64(AVIARY_VERSION);
		request->answered = identify_answered;
	}
	spin_lock_irq(&device->lock);
	device->pinged = true;
	device->silent_ms = 0;
	spin_unlock_irq(&device->lock);
	aviary_request_send(device, request);
	aviary_request_put(request);
	return 0;
}

static void device_lose(struct aviary_device *device)
{
	pr_warn("no answer from the device within %u ms: its sessions are over\n",
		patience_ms(device));
	aviary_sessions_end(device);
	aviary_requests_abandon(device);
	wake_up_all(&device->changed);
	wake_up_all(&device->bell_wait);
}

/*
 * Runs while the device knows of sessions. A lost device is not asked again: its unanswered request
 * is still in the queue, and the answer will show that the device is back.
 *
 * The silence of the device is counted in ticks of this kernel, not by the clock: a VM that was
 * stopped for a while finds the clock far ahead, with the answer still in flight.
 */
static void device_watch(struct work_struct *work)
{
	struct aviary_device *device =
		container_of(to_delayed_work(work), struct aviary_device, watch);
	bool ask, lose = false;

	spin_lock_irq(&device->lock);
	ask = !device->pinged;
	if (device->state != AVIARY_RUNNING || device->lost ||
	    (ask && !atomic_read(&device->connected))) {
		spin_unlock_irq(&device->lock);
		return;
	}
	if (!ask) {
		device->silent_ms += PING_INTERVAL_MS;
		lose = device->silent_ms >= patience_ms(device);
		device->lost = lose;
	}
	spin_unlock_irq(&device->lock);

	if (lose) {
		device_lose(device);
		return;
	}
	if (ask)
		device_ask(device, AVIARY_PING);
	aviary_device_watch(device);
}

/**
 * aviary_device_watch - starts the liveness check, which runs while there are sessions
 * @device: the device
 */
void aviary_device_watch(struct aviary_device *device)
{
	unsigned long flags;

	spin_lock_irqsave(&device->lock, flags);
	if (device->state == AVIARY_RUNNING)
		queue_delayed_work(device->work, &device->watch, msecs_to_jiffies(PING_INTERVAL_MS));
	spin_unlock_irqrestore(&device->lock, flags);
}

/**
 * aviary_device_instance - takes the instance number that the device reported
 * @device: the device
 * @instance: a new instance knows neither the sessions nor its positions in the queues
 */
void aviary_device_instance(struct aviary_device *device, u64 instance)
{
	unsigned long flags;
	bool other;

	spin_lock_irqsave(&device->lock, flags);
	other = device->identified && device->instance != instance;
	spin_unlock_irqrestore(&device->lock, flags);
	if (other)
		aviary_device_reset();
}

static bool device_settled(struct aviary_device *device)
{
	unsigned long flags;
	bool settled;

	spin_lock_irqsave(&device->lock, flags);
	settled = device->identified || device->refused || device->lost ||
		  device->state != AVIARY_RUNNING;
	spin_unlock_irqrestore(&device->lock, flags);
	return settled;
}

/**
 * aviary_device_wait - waits until the device can be used
 * @device: the device
 *
 * Return: 0, -ENODEV, or -EINTR.
 */
int aviary_device_wait(struct aviary_device *device)
{
	if (wait_event_interruptible(device->changed, device_settled(device)))
		return -EINTR;
	if (!READ_ONCE(device->identified) || READ_ONCE(device->lost))
		return -ENODEV;
	return 0;
}

static int device_queues(struct aviary_device *device)
{
	vq_callback_t *callbacks[3] = {
		aviary_control_callback, aviary_events_callback, aviary_bells_callback
	};
	struct virtqueue *queues[3];
	int err;

	err = aviary_find_queues(device->vdev, queues, callbacks);
	if (err)
		return err;
	device->control = queues[0];
	device->events = queues[1];
	device->doorbell = queues[2];
	return 0;
}

/**
 * aviary_device_start - takes a virtio device into use
 * @vdev: the virtio device, after a reset
 *
 * Its identity arrives later: a virtual machine also starts without the other end of its device.
 */
struct aviary_device *aviary_device_start(struct virtio_device *vdev)
{
	struct aviary_device *device;
	int err;

	device = kzalloc(sizeof(*device), GFP_KERNEL);
	if (!device)
		return ERR_PTR(-ENOMEM);
	kref_init(&device->kref);
	device->vdev = vdev;
	spin_lock_init(&device->lock);
	spin_lock_init(&device->events_lock);
	spin_lock_init(&device->bell_lock);
	INIT_LIST_HEAD(&device->flying);
	INIT_LIST_HEAD(&device->backlog);
	init_waitqueue_head(&device->changed);
	init_waitqueue_head(&device->bell_wait);
	INIT_DELAYED_WORK(&device->watch, device_watch);
	xa_init_flags(&device->sessions, XA_FLAGS_LOCK_IRQ);
	vdev->priv = device;

	err = -ENOMEM;
	device->work = alloc_workqueue("aviary", WQ_UNBOUND, 0);
	if (!device->work)
		goto free;
	err = device_queues(device);
	if (err)
		goto destroy;
	err = aviary_events_start(device);
	if (!err)
		err = aviary_bells_start(device);
	if (err)
		goto reset;
	virtio_device_ready(vdev);
	virtqueue_kick(device->events);
	err = device_ask(device, AVIARY_IDENTIFY);
	if (err)
		goto reset;
	aviary_device_watch(device);
	return device;

reset:
	aviary_device_stop(device);
	aviary_device_put(device);
	return ERR_PTR(err);
destroy:
	destroy_workqueue(device->work);
free:
	vdev->priv = NULL;
	kfree(device);
	return ERR_PTR(err);
}

/*
 * Waits until the device uses no memory of a session any more. Not every hypervisor lets the reset
 * wait for that.
 */
static void device_close_sessions(struct aviary_device *device)
{
	aviary_sessions_end(device);
	wait_event_timeout(device->changed,
			   !atomic_read(&device->connected) || READ_ONCE(device->lost) ||
			   virtqueue_is_broken(device->control),
			   msecs_to_jiffies(CLOSE_PATIENCE_MS));
}

/**
 * aviary_device_stop - stops a device, which may still be open
 * @device: the device, which can no longer be opened
 *
 * Memory that the device may use is freed only after its reset.
 */
void aviary_device_stop(struct aviary_device *device)
{
	struct virtio_device *vdev = device->vdev;

	device_close_sessions(device);
	spin_lock_irq(&device->lock);
	device->state = AVIARY_STOPPING;
	spin_unlock_irq(&device->lock);
	cancel_delayed_work_sync(&device->watch);

	virtio_reset_device(vdev);
	spin_lock_irq(&device->lock);
	device->state = AVIARY_GONE;
	spin_unlock_irq(&device->lock);
	wake_up_all(&device->changed);

	aviary_sessions_end(device);
	aviary_requests_drop(device);
	/* The ends of sessions queue no further work from here on. */
	destroy_workqueue(device->work);
	aviary_events_stop(device);
	aviary_bells_stop(device);
	vdev->config->del_vqs(vdev);
	vdev->priv = NULL;
}
