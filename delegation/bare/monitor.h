/* What the files of the monitor share. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* --- monitor_memory.c: physical pages, extended page tables, page tables of guests --- */

enum { EPT_READ = 1, EPT_WRITE = 2, EPT_EXECUTE = 4 };
enum { PTE_PRESENT = 1, PTE_WRITE = 2, PTE_USER = 4 };
#define PTE_NO_EXECUTE (1ull << 63)

/* Guest-physical memory: an extended page table, and where the next page table of the guest goes. */
struct space {
    uint64_t *root;
    uint64_t next;
    /* Table pages are added to it one by one, read-only to the guest, in place of being taken from its RAM. */
    bool private;
};

void *page_alloc(void);
void copy(void *to, const void *from, uint64_t bytes);
void fill(void *to, uint8_t byte, uint64_t bytes);
uint64_t eptp(const struct space *space);
void ept_map(struct space *space, uint64_t physical, void *page, unsigned permissions);
/* The host's page, or NULL. */
void *ept_lookup(const struct space *space, uint64_t physical, unsigned *permissions);
void ept_zap(struct space *space, uint64_t physical);
/* Maps PAGES pages of new RAM from guest-physical 0 on. */
void ept_add_ram(struct space *space, unsigned pages);
/* What a guest-physical address is to the monitor; it must be mapped. */
void *at(const struct space *space, uint64_t physical);
/* Maps a page of a guest's virtual memory in the tables at CR3. */
void map(struct space *space, uint64_t cr3, uint64_t virtual, uint64_t physical, uint64_t flags);
/* The entry of the last table, or NULL. */
uint64_t *entry_of(const struct space *space, uint64_t cr3, uint64_t virtual);
typedef void page_visitor(void *context, uint64_t virtual, uint64_t entry);
/* Each page that user code of these tables can reach. */
void each_user_page(const struct space *space, uint64_t cr3, page_visitor *visit, void *context);
typedef void frame_visitor(void *context, uint64_t physical, void *page, unsigned permissions);
void each_frame(const struct space *space, frame_visitor *visit, void *context);

/* --- monitor_vmx.c --- */

struct registers {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15;
};

/* A virtual CPU. The MSRs of system calls are not in its VMCS. */
struct vcpu {
    void *vmcs;
    struct registers registers;
    struct space *own;
    uint64_t lstar;
    uint64_t entries;
    bool launched;
};

enum {
    REASON_TRIPLE_FAULT = 2, REASON_CPUID = 10, REASON_VMCALL = 18, REASON_EPT_VIOLATION = 48, REASON_TIMER = 52, REASON_VMFUNC = 59,
};

/* Fields of a VMCS. */
enum {
    VPID = 0x0000, GUEST_CS = 0x0802, GUEST_SS = 0x0804, EPT_POINTER = 0x201a, EPTP_LIST = 0x2024, VM_FUNCTION_CONTROL = 0x2018,
    GUEST_PHYSICAL = 0x2400, EXIT_REASON = 0x4402, EXIT_INSTRUCTION_LENGTH = 0x440c, EXIT_QUALIFICATION = 0x6400,
    GUEST_CS_RIGHTS = 0x4816, GUEST_SS_RIGHTS = 0x4818, TIMER_VALUE = 0x482e, GUEST_CR0 = 0x6800, GUEST_CR3 = 0x6802,
    GUEST_CR4 = 0x6804, GUEST_FS_BASE = 0x680e, GUEST_GS_BASE = 0x6810, GUEST_TR_BASE = 0x6814, GUEST_GDTR_BASE = 0x6816,
    GUEST_IDTR_BASE = 0x6818, GUEST_RSP = 0x681c, GUEST_RIP = 0x681e, GUEST_RFLAGS = 0x6820, GUEST_DR7 = 0x681a, GUEST_SS_LIMIT = 0x4804,
};
enum { CR4_SMEP = 1 << 20, CR4_SMAP = 1 << 21, CR4_BASE = 0x12620 /* PAE, OSFXSR, OSXMMEXCPT, VMXE, FSGSBASE */ };

void vmx_on(void);
uint64_t vmread(uint64_t field);
void vmwrite(uint64_t field, uint64_t value);
/* A virtual CPU in this guest, with its VMCS loaded. */
void vcpu_make(struct vcpu *vcpu, struct space *own);
/* Guest state as after a start in ring RING, no interrupts, tables of a kernel in place. */
void vcpu_reset(struct vcpu *vcpu, unsigned ring, uint64_t cr3, uint64_t rip, uint64_t rsp);
void vcpu_load(struct vcpu *vcpu);
/* Runs it up to its next exit; the exit's reason. */
uint32_t vcpu_run(struct vcpu *vcpu);
void ring_3(void);
void invalidate_all(void);
/* The slice after which REASON_TIMER ends a run of the loaded one. */
void slice(uint64_t ticks);
uint64_t rdmsr(uint32_t number);
void wrmsr(uint32_t number, uint64_t value);

/* --- monitor_print.c --- */

__attribute__((format(printf, 1, 2))) void print(const char *format, ...);
/* The line of a check; a failed one makes the run fail. */
__attribute__((format(printf, 2, 3))) void check(bool good, const char *format, ...);
_Noreturn void power_off(void);
_Noreturn void panic(const char *what, uint64_t value);
static inline uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }

/* --- monitor_guests.c: a client VM, a server VM, the domain between them --- */

/* Guest-physical addresses. */
enum {
    CLIENT_CR3 = 0x8000, STRANGER_CR3 = 0x60000, SERVER_CR3 = 0x1000, SERVER_USER_CR3 = 0x2000, OTHER_CR3 = 0x5000,
    GUEST_PAGES = 512,
    G_IDT = 0x10000, G_GDT = 0x11000, G_TSS = 0x12000, G_STACK = 0x13000, G_KTEXT = 0x14000,
    G_TEXT = 0x20000, G_USER_STACK = 0x40000, G_SLOT = 0x44000, G_RESULTS = 0x45000, G_SCRATCH = 0x50000,
    G_DATA = 0x28000, G_SECRETS = 0x34000, G_BERTH = 0x35000, G_CANARY = 0x52000, G_OTHER = 0x53000,
    G_TABLES = 0xc0000, G_TRAMPOLINE = 0x300000, G_TABLE = 0x301000, G_WINDOW = 0x310000, G_SERVER_WINDOW = 0x180000, G_PRIVATE = 0x100000,
    WINDOW_PAGES = 8,
};

enum canary { CANARY_SERVER_KERNEL, CANARY_OTHER_PROCESS, CANARY_HOST, CANARIES };

struct machine {
    struct space client, server, domain;
    /* The domain of another tenant's session with the same server VM, in nobody's list here. */
    struct space other;
    struct vcpu vcpu, server_vcpu;
    /* What entry 1 of the list leads to: the domain, or the complete server VM in the test build of the paper's way. */
    struct space paper;
    uint64_t *list;
    void *trampoline, *table, *window[WINDOW_PAGES];
    void *stubs, *stub_stack;
    void *canary[CANARIES];
    /* Guest-physical address of each page of the window in the domain. */
    uint64_t window_in_domain[WINDOW_PAGES];
};
extern struct machine machine;

/* If the build is the paper's way: the whole server VM is what the client can switch to. */
#ifdef WHOLE_VM
enum { WHOLE = 1 };
#else
enum { WHOLE = 0 };
#endif

void machine_make(void);
/* Gives the client its memory and registers as at the start; ring 3, at RIP. */
void client_reset(void *rip);
/* Makes entry 1 of the list anew. With `kernel` (the paper's way only) the tables that the client finds there have kernel pages. */
void link_up(bool kernel);
uint64_t canary_word(enum canary which, unsigned index);
/* Which canary this is a word of, or CANARIES. */
enum canary canary_of(uint64_t word);
bool canaries_unchanged(void);
void canaries_restore(void);
/* The canary of which a word is in the client's memory or in the window, or CANARIES. */
enum canary canary_in_memory(void);
/* Where in the domain a page of the host is, or 0. */
uint64_t in_domain(const void *page);
/* Grants a page of the API server that its tables have at this address. */
bool grant(uint64_t virtual);

/* --- monitor_run.c: what happens at exits --- */

struct outcome {
    bool done;              /* the program reported VALUE */
    uint64_t value;
    uint32_t reason;        /* of the exit that ended it */
    uint64_t qualification, rip;
    bool in_domain;
    unsigned ring;
    int vector;             /* of the stub that was reached, -1: none, 256: system call */
};

/* How runs of the client are treated. */
struct policy {
    /* Contexts in the domain are handed over to the server's virtual CPU. Without, the client's run ends there. */
    bool hand_over;
    /* HC_SWITCH does what VMFUNC would. */
    bool exits_switch;
    /* A second hand-over ends the run. */
    bool once;
    /* Pages that a hand-over missed are granted. */
    bool grants;
    /* The slice, in ticks, after which the client is interrupted once. */
    uint64_t slice;
    bool revoke_at_slice;
    /* Called there, as another thread would be. */
    void (*at_slice)(void);
};
extern struct policy policy;

struct counts {
    uint64_t exits, by_reason[64], handed_over, server_entries;
};
extern struct counts counts;

/* The last exception of the server's thread in its own virtual CPU. */
struct fault {
    int vector;
    uint64_t rip, rflags;
    unsigned ring;
};
extern struct fault server_last_fault;

void server_start_up(void);
struct outcome run_client(void);
/* Zap, INVEPT, borrowers out, acknowledge; then a page with the next value is in its place, not granted yet. */
void revoke_secrets(void);
/* Events of revocations, in order. */
enum event { EVENT_ZAP, EVENT_INVEPT, EVENT_BORROWERS_OUT, EVENT_ACKNOWLEDGED };
void note(enum event event);
bool revocations_in_order(uint64_t *seen);

/* --- the parts of the test --- */
void measure(void);
void hand_overs(void);
void attacks(void);
void sweeps(void);

/* --- monitor_attacks.c: what the sweeps use, too --- */
enum { VIRTUAL_TARGET = 0x4ff000, WINDOW_CODE = WINDOW + 0x4000, WINDOW_STACK = WINDOW + 0x800, WINDOW_FOUND = WINDOW + 0x100 };
/* The machine as before any attack; the client runs in this ring. */
void attack_start(unsigned ring, bool kernel_tables);
/* The same for another attack with the memory as it is. */
void attack_again(unsigned ring);
enum canary in_registers(void);
/* Code of the client's at an address of its choice; a page that is there is replaced. */
void plant(uint64_t virtual, const void *code, unsigned length, uint64_t flags);
void set_instruction(uint64_t rip, uint64_t rsp);
/* Builds page tables in the window, of which the first page is where CR3 points, and the client's at the same address. */
uint64_t window_tables(void);
/* What these tables have for VIRTUAL_TARGET. */
void window_target(uint64_t physical, bool as_window);
enum canary leaked(const struct outcome *outcome);
const char *why(const struct outcome *outcome);
/* In ring 0, CR3 = tables in the window: reads a word of guest-physical memory of whatever the list leads to. */
struct outcome read_physical(uint64_t physical);
struct outcome write_physical(uint64_t physical);

/* --- symbols of the programs and pages --- */
extern char client_at[], client_start[], client_end[], server_at[], server_start[], server_end[], trampoline_at[], trampoline_start[];
extern char client_kernel_text[], server_kernel_text[], stub_text[];
extern char trampoline_switch[], trampoline_handled[], was_handed_over[], client_report[], client_report_window[];
extern char server_main[], trampoline[], trampoline_resume[], trampoline_back[];
