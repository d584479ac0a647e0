// SPDX-License-Identifier: GPL-2.0
/* Stands for the driver of an image: it can be loaded, and that is all. */
#include <linux/module.h>

static int __init begin(void)
{
	return 0;
}

static void __exit end(void)
{
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test of images");
