/* The loader's first instruction, with the segments of a kernel's boot protocol. */
    .section .head, "ax"
    .code64
    mov $0x18, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $0x70000, %esp
    call load
