// SPDX-License-Identifier: GPL-2.0
/* The system calls on /dev/aviary. */

#include <linux/fs.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "driver.h"

static int aviary_open(struct inode *inode, struct file *file)
{
	struct aviary_device *device = aviary_device_get();
	struct aviary_session *session;
	int err;

	if (!device)
		return -ENODEV;
	err = aviary_device_wait(device);
	if (err)
		goto put;
	err = -ENODEV;
	if (!aviary_device_lock(device))
		goto put;
	session = aviary_session_new(device, inode);
	aviary_device_unlock();
	err = PTR_ERR_OR_ZERO(session);
	if (err)
		goto put;
	file->private_data = session;
	file->f_mapping = &session->mapping;
	stream_open(inode, file);
put:
	aviary_device_put(device);
	return err;
}

/*
 * Called for every process that closes a descriptor. The session ends with its opener, also if
 * children of the opener still have the file.
 */
static int aviary_flush(struct file *file, fl_owner_t id)
{
	struct aviary_session *session = file->private_data;

	if ((current->flags & PF_EXITING) && !atomic_read(&current->signal->live) &&
	    aviary_session_owned(session))
		aviary_session_end(session);
	return 0;
}

static int aviary_file_release(struct inode *inode, struct file *file)
{
	struct aviary_session *session = file->private_data;

	aviary_session_end(session);
	aviary_session_put(session);
	return 0;
}

static long ioctl_info(struct aviary_session *session, void __user *argument)
{
	struct aviary_info info = {
		.interface = AVIARY_INTERFACE,
		.largest_arena = aviary_session_largest(session),
	};

	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static long ioctl_counters(struct aviary_session *session, void __user *argument)
{
	struct aviary_counters counters = {
		.requests = atomic64_read(&session->requests),
		.kicks = atomic64_read(&session->kicks),
		.sleeps = atomic64_read(&session->sleeps),
		.wakes = atomic64_read(&session->wakes),
		.pages_pinned = atomic64_read(&session->pages_pinned),
		.bytes_pinned = atomic64_read(&session->bytes_pinned),
		.chunks = atomic64_read(&session->chunks_now),
	};

	return copy_to_user(argument, &counters, sizeof(counters)) ? -EFAULT : 0;
}

static long ioctl_wait(struct aviary_session *session, void __user *argument)
{
	struct aviary_wait wait;

	if (copy_from_user(&wait, argument, sizeof(wait)))
		return -EFAULT;
	return aviary_wait(session, &wait);
}

static long ioctl_wake(struct aviary_session *session, void __user *argument)
{
	struct aviary_wake wake;

	if (copy_from_user(&wake, argument, sizeof(wake)))
		return -EFAULT;
	if ((wake.offset & 3) || wake.offset >= session->arena ||
	    (wake.flags & ~AVIARY_WAKE_LOCAL) || wake.reserved)
		return -EINVAL;
	if (wake.flags & AVIARY_WAKE_LOCAL) {
		aviary_wake(session, wake.offset);
		return 0;
	}
	if (aviary_session_over(session))
		return -EPIPE;
	if (!READ_ONCE(session->greeted))
		return -ENOTCONN;
	return aviary_bell_ring(session, wake.offset);
}

static long ioctl_pin(struct aviary_session *session, void __user *argument)
{
	struct aviary_pin pin;

	if (copy_from_user(&pin, argument, sizeof(pin)))
		return -EFAULT;
	return aviary_pin(session, &pin);
}

static long ioctl_range(struct aviary_session *session, void __user *argument,
			long (*range_call)(struct aviary_session *session,
					   const struct aviary_range *range))
{
	struct aviary_range range;

	if (copy_from_user(&range, argument, sizeof(range)))
		return -EFAULT;
	return range_call(session, &range);
}

static long aviary_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct aviary_session *session = file->private_data;
	void __user *from = (void __user *)argument;

	switch (command) {
	case AVIARY_INFO:
		return ioctl_info(session, from);
	case AVIARY_COUNTERS:
		return ioctl_counters(session, from);
	}
	/* A process that inherited the file has none of the memory. */
	if (!aviary_session_owned(session))
		return -EPERM;
	switch (command) {
	case AVIARY_WAIT:
		return ioctl_wait(session, from);
	case AVIARY_WAKE:
		return ioctl_wake(session, from);
	case AVIARY_PIN:
		return ioctl_pin(session, from);
	case AVIARY_UNPIN:
		return ioctl_range(session, from, aviary_unpin);
	case AVIARY_RELEASE:
		return ioctl_range(session, from, aviary_chunks_release);
	case AVIARY_END:
		aviary_session_end(session);
		return 0;
	}
	return -ENOTTY;
}

const struct file_operations aviary_file_operations = {
	.owner		= THIS_MODULE,
	.open		= aviary_open,
	.flush		= aviary_flush,
	.release	= aviary_file_release,
	.read		= aviary_stream_read,
	.write		= aviary_stream_write,
	.poll		= aviary_stream_poll,
	.mmap		= aviary_mapping,
	.unlocked_ioctl	= aviary_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
};
