/* The monitor's first instruction, the way into a guest and back, and its own exceptions. */
#include "layout.h"
    .section .head, "ax"
    .code64
    .globl monitor_start
monitor_start:
    mov $0x18, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    xor %eax, %eax
    mov %eax, %fs
    mov %eax, %gs
    mov $bss_start, %edi
    mov $bss_end, %ecx
    sub %edi, %ecx
    xor %eax, %eax
    rep stosb
    mov $stack_top, %esp
    call monitor_main
1:  hlt
    jmp 1b

    .text
    /* uint32_t vmx_enter(struct registers *, bool launched): 0 after an exit, 1 if the entry failed. */
    .globl vmx_enter, vmx_exit
vmx_enter:
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    push %rdi
    mov $0x6c14, %edx                   /* HOST_RSP */
    vmwrite %rsp, %rdx
    test %esi, %esi
    mov 0(%rdi), %rax
    mov 8(%rdi), %rbx
    mov 16(%rdi), %rcx
    mov 24(%rdi), %rdx
    mov 32(%rdi), %rsi
    mov 48(%rdi), %rbp
    mov 56(%rdi), %r8
    mov 64(%rdi), %r9
    mov 72(%rdi), %r10
    mov 80(%rdi), %r11
    mov 88(%rdi), %r12
    mov 96(%rdi), %r13
    mov 104(%rdi), %r14
    mov 112(%rdi), %r15
    mov 40(%rdi), %rdi
    jnz 1f
    vmlaunch
    jmp 2f
1:  vmresume
2:  pop %rdi
    mov $1, %eax
    jmp 3f
vmx_exit:
    xchg %rdi, (%rsp)
    mov %rax, 0(%rdi)
    mov %rbx, 8(%rdi)
    mov %rcx, 16(%rdi)
    mov %rdx, 24(%rdi)
    mov %rsi, 32(%rdi)
    mov %rbp, 48(%rdi)
    mov %r8, 56(%rdi)
    mov %r9, 64(%rdi)
    mov %r10, 72(%rdi)
    mov %r11, 80(%rdi)
    mov %r12, 88(%rdi)
    mov %r13, 96(%rdi)
    mov %r14, 104(%rdi)
    mov %r15, 112(%rdi)
    pop %rax
    mov %rax, 40(%rdi)
    xor %eax, %eax
3:  pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret

    /* Exceptions of the monitor are defects of it: eight bytes a vector. */
    .balign 8
    .globl host_vectors
host_vectors:
    .rept 32
    call host_fault
    .balign 8
    .endr
host_fault:
    pop %rdi
    mov (%rsp), %rsi
    mov 8(%rsp), %rdx
    call host_panic

    .bss
    .balign 4096
    .skip 16384
stack_top:
