/* Addresses, numbers and codes that the monitor, the trampoline and the programs of the guests share. */
#pragma once

/* The monitor's own, physical. */
#define IMAGE_CHUNKS 8                      /* of 32 KiB */
#define HOST_PML4 0x1000
#define MONITOR 0x10000
#define POOL 0x400000
#define POOL_END 0x3000000

/* Virtual addresses in the client and in the server. Those of the trampoline, table and window are the same in both. */
#define CLIENT_TEXT 0x400000
#define CLIENT_STACK 0x440000               /* four pages */
#define SLOT 0x450000                       /* client only: where a call left its stack and FS base */
#define RESULTS 0x451000                    /* client only: what its programs found */
#define SCRATCH 0x452000                    /* client only: a page for code of attacks */
#define TRAMPOLINE 0x500000
#define TABLE 0x501000                      /* addresses of handlers */
#define BERTH 0x502000                      /* server only: the sleeping thread's context */
#define WINDOW 0x510000                     /* eight pages that both sides write */
#define SERVER_TEXT 0x600000
#define SERVER_DATA 0x610000
#define SERVER_STACK 0x620000               /* four pages */
#define SERVER_SECRETS 0x630000             /* a page of the API server that is granted and revoked */

/* Where a kernel has its tables. */
#define KERNEL_IDT 0xfffffe0000000000
#define KERNEL_GDT 0xfffffe0000001000
#define KERNEL_TSS 0xfffffe0000003000
#define KERNEL_STACK 0xfffffe0000004000
#define CLIENT_KTEXT 0xffffffff82000000
#define SERVER_KTEXT 0xffffffff81000000
#define SERVER_CANARY 0xffff888000050000
#define ENTRY_OFFSET 0x80                   /* of the system call's entry in a kernel's text */
#define VECTORS_OFFSET 0x800                /* of 256 stubs of four bytes */
#define COPY_OFFSET 0x200                   /* functions of the server's kernel, as any kernel has them */
#define SYSRET_OFFSET 0x240

/* Fields of the slot. */
#define SLOT_RSP 0
#define SLOT_FS 8
/* Fields of the berth. */
#define BERTH_STATE 0
#define BERTH_RSP 8
#define BERTH_FS 16
#define BERTH_MXCSR 24
#define BERTH_FCW 28
/* Where a context that was handed over leaves its result: in the window's first page. */
#define WINDOW_REPLY 0xff0
#define WINDOW_REPLIES 0xff8

/* States of a berth. */
#define ASLEEP 1
#define BORROWED 2
#define HANDED_OVER 3

/* What the trampoline reports. */
#define RETURNED 0
#define REFUSED 1
#define WAIT_ON_LANE 2

/* Handlers of the API server. */
#define ADD 0
#define READ_SECRET 1
#define DO_SYSCALL 2
#define DO_FAULT 3
#define DO_UD2 4
#define DO_INT 5
#define DO_CPUID 6
#define READ_FS 7
#define PEEK 8
#define SPIN 9
#define COUNT 10
#define STATE 11
#define HANDLERS 12

/* Hypercalls, in EAX. */
#define HC_DONE 0x10                        /* the guest's program has ended; EBX is what it reports */
#define HC_SWITCH 0x11                      /* the exit in place of VMFUNC */
#define HC_EXITS 0x12                       /* RAX becomes the number of exits */
#define HC_SLEEP 0x13                       /* the server's thread sleeps */
#define HC_SLICE 0x15                       /* the client is interrupted once, RBX ticks after this */
#define HC_REVOKE 0x14                      /* the server takes a page away and grants one with the next value */
