// SPDX-License-Identifier: GPL-2.0
/*
 * Aviary: accelerators of the host for processes of a virtual machine.
 *
 * The module, its parameters, /dev/aviary and the totals. docs/virtio-aviary.md has the protocol
 * between driver and device.
 */

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>

#include "driver.h"

static unsigned int virtio_id = 37;
module_param(virtio_id, uint, 0444);
MODULE_PARM_DESC(virtio_id, "virtio device id that the hypervisor gave the device");

unsigned int aviary_patience_ms = 600;
module_param_named(patience_ms, aviary_patience_ms, uint, 0644);
MODULE_PARM_DESC(patience_ms, "a device that does not answer for so long is lost");

unsigned long aviary_largest_arena;
module_param_named(largest_arena, aviary_largest_arena, ulong, 0644);
MODULE_PARM_DESC(largest_arena, "bytes that one process may map, 0: what the device allows");

struct aviary_totals aviary_totals;

/*
 * The device in use, or NULL. The mutex is held while a session is made, and while the device
 * changes.
 */
static struct aviary_device *current_device;
static DEFINE_MUTEX(current_lock);

struct aviary_device *aviary_device_get(void)
{
	struct aviary_device *device;

	mutex_lock(&current_lock);
	device = current_device;
	if (device)
		kref_get(&device->kref);
	mutex_unlock(&current_lock);
	return device;
}

/* True if `device` is in use; it then stays so until aviary_device_unlock(). */
bool aviary_device_lock(struct aviary_device *device)
{
	mutex_lock(&current_lock);
	if (current_device == device)
		return true;
	mutex_unlock(&current_lock);
	return false;
}

void aviary_device_unlock(void)
{
	mutex_unlock(&current_lock);
}

/* Unbinds the driver from the device and binds it again: no state is kept. */
static void device_reset(struct work_struct *work)
{
	struct device *device = NULL;

	mutex_lock(&current_lock);
	if (current_device)
		device = get_device(&current_device->vdev->dev);
	mutex_unlock(&current_lock);
	if (!device)
		return;
	pr_warn("the device is another one than before, or its queues are broken: starting over\n");
	if (device_reprobe(device) < 0)
		pr_err("the device could not be started again\n");
	put_device(device);
}

static DECLARE_WORK(reset_work, device_reset);

/**
 * aviary_device_reset - starts over with the device
 *
 * May be called from any context. The reset does not run on the device's workqueue, which it
 * destroys.
 */
void aviary_device_reset(void)
{
	schedule_work(&reset_work);
}

static int aviary_probe(struct virtio_device *vdev)
{
	struct aviary_device *device;
	int err = 0;

	if (!virtio_has_feature(vdev, VIRTIO_F_VERSION_1)) {
		dev_err(&vdev->dev, "a legacy virtio device; version 1 is needed\n");
		return -ENODEV;
	}
	mutex_lock(&current_lock);
	if (current_device) {
		dev_err(&vdev->dev, "there is another device in use\n");
		err = -EBUSY;
		goto unlock;
	}
	device = aviary_device_start(vdev);
	if (IS_ERR(device))
		err = PTR_ERR(device);
	else
		current_device = device;
unlock:
	mutex_unlock(&current_lock);
	return err;
}

static void aviary_remove(struct virtio_device *vdev)
{
	struct aviary_device *device = vdev->priv;

	mutex_lock(&current_lock);
	current_device = NULL;
	mutex_unlock(&current_lock);
	aviary_device_stop(device);
	aviary_device_put(device);
}

#ifdef CONFIG_PM_SLEEP
/*
 * Processes that use the device would find its memory gone from the host, so the machine stays
 * awake.
 */
static int aviary_freeze(struct virtio_device *vdev)
{
	struct aviary_device *device = vdev->priv;

	if (!xa_empty(&device->sessions)) {
		dev_warn(&vdev->dev, "in use, and cannot be suspended then\n");
		return -EBUSY;
	}
	aviary_remove(vdev);
	return 0;
}
#endif

/* The parameter `virtio_id` changes the id before the driver is registered. */
static struct virtio_device_id id_table[] = {
	{ 37, VIRTIO_DEV_ANY_ID },
	{ 0 },
};

static struct virtio_driver aviary_driver = {
	.driver.name	= KBUILD_MODNAME,
	.driver.owner	= THIS_MODULE,
	.id_table	= id_table,
	.probe		= aviary_probe,
	.remove		= aviary_remove,
#ifdef CONFIG_PM_SLEEP
	.freeze		= aviary_freeze,
	.restore	= aviary_probe,
#endif
};

#define TOTAL(name)								\
static ssize_t name##_show(struct device *device, struct device_attribute *attribute,	\
			   char *buffer)					\
{										\
	return sysfs_emit(buffer, "%ld\n", atomic_long_read(&aviary_totals.name));	\
}										\
static DEVICE_ATTR_RO(name)

TOTAL(sessions);
TOTAL(chunks);
TOTAL(pages_pinned);
TOTAL(requests);

static struct attribute *aviary_attrs[] = {
	&dev_attr_sessions.attr,
	&dev_attr_chunks.attr,
	&dev_attr_pages_pinned.attr,
	&dev_attr_requests.attr,
	NULL,
};
ATTRIBUTE_GROUPS(aviary);

static struct miscdevice aviary_misc = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "aviary",
	.fops	= &aviary_file_operations,
	.groups	= aviary_groups,
};

static int __init aviary_init(void)
{
	int err;

	id_table[0].device = virtio_id;
	err = misc_register(&aviary_misc);
	if (err)
		return err;
	err = register_virtio_driver(&aviary_driver);
	if (err)
		misc_deregister(&aviary_misc);
	return err;
}

static void __exit aviary_exit(void)
{
	misc_deregister(&aviary_misc);
	unregister_virtio_driver(&aviary_driver);
	/* No device is left that could queue the work again. */
	cancel_work_sync(&reset_work);
}

module_init(aviary_init);
module_exit(aviary_exit);

MODULE_DEVICE_TABLE(virtio, id_table);
MODULE_DESCRIPTION("Aviary: accelerators of the host for virtual machines");
MODULE_LICENSE("GPL");
