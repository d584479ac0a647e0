/* SPDX-License-Identifier: GPL-2.0 */
/* Differences between kernels from 6.1 on. */
#ifndef AVIARY_COMPAT_H
#define AVIARY_COMPAT_H

#include <linux/mm.h>
#include <linux/version.h>
#include <linux/virtio_config.h>

static inline void aviary_set_vm_flags(struct vm_area_struct *vma, vm_flags_t set,
				       vm_flags_t clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

static inline int aviary_find_queues(struct virtio_device *vdev, struct virtqueue *queues[3],
				     vq_callback_t *callbacks[3])
{
	static const char * const names[3] = { "control", "events", "doorbell" };
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	struct virtqueue_info info[3] = {
		{ .name = names[0], .callback = callbacks[0] },
		{ .name = names[1], .callback = callbacks[1] },
		{ .name = names[2], .callback = callbacks[2] },
	};

	return virtio_find_vqs(vdev, 3, queues, info, NULL);
#else
	return virtio_find_vqs(vdev, 3, queues, callbacks, (const char **)names, NULL);
#endif
}

/*
 * Pages that the device only reads must stay the process's own when the process writes to them.
 * Before 6.2 a read-only pin of private memory that was never written pins the shared zero page.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define AVIARY_GUP_READ		0
#else
#define AVIARY_GUP_READ		(FOLL_WRITE | FOLL_FORCE)
#endif

#endif
