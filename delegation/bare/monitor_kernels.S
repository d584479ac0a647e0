/* The texts of the two guests' kernels and of a domain's stubs, each one page that the monitor copies. */
#include "layout.h"
    .section .rodata

    /* A vector's stub is VMCALL alone: its address tells the vector. */
    .macro VECTORS
    .rept 256
    vmcall
    hlt
    .endr
    .endm

    .balign 4096
    .globl client_kernel_text
client_kernel_text:
    .org client_kernel_text + ENTRY_OFFSET
    /* arch_prctl at its least: RDI is the base, RSI its value. */
    mov %rcx, %r10
    mov $0xc0000100, %ecx
    cmp $0x1002, %edi
    je 1f
    mov $0xc0000102, %ecx
1:  mov %rsi, %rax
    mov %rsi, %rdx
    shr $32, %rdx
    wrmsr
    mov %r10, %rcx
    sysretq
    .org client_kernel_text + VECTORS_OFFSET
    VECTORS
    .org client_kernel_text + 4096

    .globl stub_text
stub_text:
    .org stub_text + ENTRY_OFFSET
    vmcall
    hlt
    .org stub_text + VECTORS_OFFSET
    VECTORS
    .org stub_text + 4096

    .globl server_kernel_text
server_kernel_text:
    /* The start: on to the API server's main. */
    sysretq
    .org server_kernel_text + ENTRY_OFFSET
    /* Every system call of the API server: the number goes to the monitor, which counts it. */
    vmcall
    sysretq
    /* Two functions that every kernel has in some form. */
    .org server_kernel_text + COPY_OFFSET
    mov %rdx, %rcx
    rep movsb
    ret
    .org server_kernel_text + SYSRET_OFFSET
    pop %rcx
    pop %r11
    sysretq
    .org server_kernel_text + VECTORS_OFFSET
    VECTORS
    .org server_kernel_text + 4096
