/* Where an attack returns to in the client: it reports what it has, in whatever ring. */
#include "layout.h"
    .text
    .globl client_report, client_report_window
client_report_window:
    mov WINDOW + 0x100, %rax
client_report:
    mov %rax, %rbx
    mov $HC_DONE, %eax
    vmcall
