/* The trampoline: a call by a client's thread into the API server and back.
 *
 * RDI is the number of the handler, RSI its argument; RAX is the result, RDX one of RETURNED, REFUSED, WAIT_ON_LANE. It is mapped
 * at one address in both address spaces, and neither may write it. Nothing here protects the server: VMFUNC can be executed at any
 * address with any registers, so that the border is what the domain holds. */
#include "layout.h"

    .macro SAVE
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    pushfq
    sub $8, %rsp
    stmxcsr (%rsp)
    fnstcw 4(%rsp)
    mov %rsp, SLOT + SLOT_RSP
    .endm

    .macro CLIENT_FS_SAVE
    rdfsbase %rax
    mov %rax, SLOT + SLOT_FS
    .endm

    .macro SWITCH to label
    xor %eax, %eax
    mov $\to, %ecx
\label:
    vmfunc
    .endm

    .macro SWITCH_BY_EXIT
    mov $HC_SWITCH, %eax
    vmcall
    .endm

    /* In the server's address space: the index, the berth, the sleeper's stack and state. */
    .macro BORROW refuse tested
    cmp $HANDLERS, %rdi
    jae \refuse
    mov $ASLEEP, %eax
    mov $BORROWED, %ecx
    lock cmpxchg %ecx, BERTH + BERTH_STATE
\tested:
    jne \refuse
    mov BERTH + BERTH_RSP, %rsp
    push $2
    popfq
    ldmxcsr BERTH + BERTH_MXCSR
    fldcw BERTH + BERTH_FCW
    .endm

    .macro SERVER_FS
    mov BERTH + BERTH_FS, %rax
    wrfsbase %rax
    .endm

    .macro HANDLE handled released
    mov TABLE(, %rdi, 8), %rax
    mov %rsi, %rdi
    call *%rax
\handled:
    mov %rax, %rbx
    mov $BORROWED, %eax
    mov $ASLEEP, %ecx
    lock cmpxchg %ecx, BERTH + BERTH_STATE
\released:
    jne was_handed_over
    mov $RETURNED, %r14d
    .endm

    .macro CLIENT_FS
    mov SLOT + SLOT_FS, %rax
    wrfsbase %rax
    .endm

    /* Back in the client. No value of the server's stays in a register. */
    .macro RESTORE
    mov SLOT + SLOT_RSP, %rsp
    mov %rbx, %rax
    mov %r14d, %edx
    ldmxcsr (%rsp)
    fldcw 4(%rsp)
    add $8, %rsp
    popfq
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    xor %ecx, %ecx
    xor %esi, %esi
    xor %edi, %edi
    xor %r8d, %r8d
    xor %r9d, %r9d
    xor %r10d, %r10d
    xor %r11d, %r11d
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    pxor %xmm\n, %xmm\n
    .endr
    ret
    .endm

    /* The paper's way with FS and GS: a system call each, before and after. The stub of the client's kernel stands for
     * arch_prctl(2): it is a lower bound of what Linux does there. */
    .macro ARCH_PRCTL register value
    mov $158, %eax
    mov $\register, %edi
    mov \value, %rsi
    syscall
    .endm

    .section .trampoline, "ax"
    .globl trampoline, trampoline_by_exit, trampoline_arch_prctl, trampoline_resume, trampoline_back
    .globl trampoline_switch, trampoline_claim_tested, trampoline_handled, trampoline_released, trampoline_restore, was_handed_over
trampoline:
    SAVE
    CLIENT_FS_SAVE
    SWITCH 1, trampoline_switch
    BORROW refused, trampoline_claim_tested
    SERVER_FS
    HANDLE trampoline_handled, trampoline_released
trampoline_back:
    SWITCH 0, switch_back
trampoline_restore:
    CLIENT_FS
    RESTORE
refused:
    mov $REFUSED, %r14d
    xor %ebx, %ebx
    jmp trampoline_back

    /* The monitor brings a client here whose call was handed over. */
trampoline_resume:
    mov $WAIT_ON_LANE, %r14d
    xor %ebx, %ebx
    jmp trampoline_restore

    /* The handler returns in its own thread: the reply is left in the window, and the thread sleeps again. */
was_handed_over:
    mov %rbx, WINDOW + WINDOW_REPLY
    lock incq WINDOW + WINDOW_REPLIES
    movl $ASLEEP, BERTH + BERTH_STATE
    mov $HC_SLEEP, %eax
    syscall

    .balign 64
trampoline_by_exit:
    SAVE
    CLIENT_FS_SAVE
    SWITCH_BY_EXIT
    BORROW refused_by_exit, tested_by_exit
    SERVER_FS
    HANDLE handled_by_exit, released_by_exit
back_by_exit:
    SWITCH_BY_EXIT
    CLIENT_FS
    RESTORE
refused_by_exit:
    mov $REFUSED, %r14d
    xor %ebx, %ebx
    jmp back_by_exit

    .balign 64
trampoline_arch_prctl:
    SAVE
    mov %rdi, %r12
    mov %rsi, %r13
    ARCH_PRCTL 0x1002, WINDOW
    ARCH_PRCTL 0x1001, $0
    mov %r12, %rdi
    mov %r13, %rsi
    SWITCH 1, switch_arch_prctl
    BORROW refused, tested_arch_prctl
    HANDLE handled_arch_prctl, released_arch_prctl
    SWITCH 0, switch_back_arch_prctl
    ARCH_PRCTL 0x1002, SLOT + SLOT_FS
    ARCH_PRCTL 0x1001, $0
    RESTORE
