/* Where the loader finds what on the disk and puts what in memory; tests/delegate/kvm/run reads these lines, too. */
#pragma once

/* The sector of the loader's list, behind what the boot sector reads. */
#define LIST 513
#define PARAMETERS 0x3000000
#define KERNEL 0x4000000
#define INITRD 0x8000000
#define MEMORY_MIB 224
