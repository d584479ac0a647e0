/* Reads a Linux kernel, its parameters and its initial file system from the disk and enters the kernel's 64-bit entry.
 *
 * The first sector behind the loader has the list: sectors and addresses (tests/delegate/kvm/run writes it). */
#include <stdint.h>

#include "disk.h"

struct part {
    uint32_t first, count;
    uint64_t address;
};

static void out(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

static uint8_t in(uint16_t port)
{
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static void read_sector(uint32_t sector, void *to)
{
    uint64_t words = 256;
    out(0x1f2, 1);
    out(0x1f3, (uint8_t)sector);
    out(0x1f4, (uint8_t)(sector >> 8));
    out(0x1f5, (uint8_t)(sector >> 16));
    out(0x1f6, (uint8_t)(0xe0 | sector >> 24));
    out(0x1f7, 0x20);
    /* Until it is not busy and has the data. */
    while ((in(0x1f7) & 0x88) != 0x08) continue;
    __asm__ volatile("rep insw" : "+D"(to), "+c"(words) : "d"(0x1f0) : "memory");
}

void load(void)
{
    static struct part list[32] __attribute__((aligned(8)));
    read_sector(LIST, list);
    for (struct part *part = list; part->count; part++)
        for (uint32_t sector = 0; sector < part->count; sector++) read_sector(part->first + sector, (char *)part->address + sector * 512ull);
    __asm__ volatile("jmp *%0" : : "r"(KERNEL + 0x200ull), "S"((uint64_t)PARAMETERS));
}
