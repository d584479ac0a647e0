/* The boot sector: reads the monitor from the disk and enters it in 64-bit mode, with memory mapped as it is. */
#include "layout.h"
    .code16
    .section .boot, "ax"
    .globl boot_start
boot_start:
    ljmp $0, $1f
1:  cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x7c00, %sp
    mov %dl, drive
    mov $IMAGE_CHUNKS, %cx
read:
    push %cx
    mov $0x42, %ah
    mov drive, %dl
    mov $packet, %si
    int $0x13
    jc failed
    addw $0x800, packet_segment         /* 64 sectors are 0x800 paragraphs */
    addl $64, packet_sector
    pop %cx
    loop read
    in $0x92, %al                       /* address line 20 */
    or $2, %al
    out %al, $0x92
    mov $0xff, %al                      /* no interrupts of devices */
    out %al, $0x21
    out %al, $0xa1
    /* 1 GiB in pages of 2 MiB. */
    mov $HOST_PML4, %edi
    xor %eax, %eax
    mov $(3 * 4096 / 4), %ecx
    rep stosl
    movl $(HOST_PML4 + 0x1003), HOST_PML4
    movl $(HOST_PML4 + 0x2003), HOST_PML4 + 0x1000
    mov $(HOST_PML4 + 0x2000), %edi
    mov $0x83, %eax
    mov $512, %ecx
2:  mov %eax, (%di)
    add $0x200000, %eax
    add $8, %di
    loop 2b
    lgdt gdt_pointer
    mov $0x20, %eax
    mov %eax, %cr4
    mov $HOST_PML4, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx
    rdmsr
    or $0x900, %eax                     /* long mode, no-execute */
    wrmsr
    mov $0x80050033, %eax
    mov %eax, %cr0
    ljmpl $0x10, $MONITOR
failed:
    mov $'!', %al
    out %al, $0xe9
    hlt
    jmp failed
drive: .byte 0
    .align 4
packet:
    .byte 16, 0
    .word 64
    .word 0
packet_segment:
    .word MONITOR >> 4
packet_sector:
    .long 1, 0
    .align 8
gdt:
    .quad 0, 0, 0x00af9b000000ffff, 0x00cf93000000ffff
gdt_pointer:
    .word . - gdt - 1
    .long gdt
    .org 510
    .word 0xaa55
