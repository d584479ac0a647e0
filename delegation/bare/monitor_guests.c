/* The two VMs and what a client can switch to: its domain, or (test build) the paper's complete server VM. */
#include "monitor.h"

struct machine machine;

enum { READ_ONLY = PTE_USER | PTE_PRESENT, WRITABLE = PTE_USER | PTE_WRITE | PTE_PRESENT, KERNEL = PTE_WRITE | PTE_PRESENT };
enum { ALL = EPT_READ | EPT_WRITE | EPT_EXECUTE };

/* --- canaries: pages of words that occur nowhere else --- */

uint64_t canary_word(enum canary which, unsigned index)
{
    static const uint64_t base[CANARIES] = {0x5e47e471a9c3d800, 0x07e4a54d1c62f400, 0x4057b3e98d15aa00};
    return base[which] + index;
}

enum canary canary_of(uint64_t word)
{
    for (enum canary which = 0; which < CANARIES; which++)
        if (word - canary_word(which, 0) < 512) return which;
    return CANARIES;
}

static void canary_fill(enum canary which, void *page)
{
    machine.canary[which] = page;
    for (unsigned index = 0; index < 512; index++) ((uint64_t *)page)[index] = canary_word(which, index);
}

bool canaries_unchanged(void)
{
    for (enum canary which = 0; which < CANARIES; which++)
        for (unsigned index = 0; index < 512; index++)
            if (((uint64_t *)machine.canary[which])[index] != canary_word(which, index)) return false;
    return true;
}

void canaries_restore(void)
{
    for (enum canary which = 0; which < CANARIES; which++) canary_fill(which, machine.canary[which]);
}

static enum canary canary_in_page(const uint64_t *words)
{
    for (unsigned index = 0; index < 512; index++)
        if (words[index] && canary_of(words[index]) != CANARIES) return canary_of(words[index]);
    return CANARIES;
}

enum canary canary_in_memory(void)
{
    enum canary found = CANARIES;
    for (int page = 0; page < WINDOW_PAGES && found == CANARIES; page++) found = canary_in_page(machine.window[page]);
    for (uint64_t page = 0; page < GUEST_PAGES && found == CANARIES; page++) found = canary_in_page(at(&machine.client, page * 4096));
    return found;
}

/* --- what both guests have --- */

static void gates(uint64_t *idt, uint64_t text)
{
    for (uint64_t vector = 0; vector < 256; vector++) {
        uint64_t handler = text + VECTORS_OFFSET + 4 * vector;
        /* The stack of the first entry of the TSS's list, whatever RSP is. */
        idt[2 * vector] = (handler & 0xffff) | 0x10ull << 16 | 0x8e01ull << 32 | (handler >> 16 & 0xffff) << 48;
        idt[2 * vector + 1] = handler >> 32;
    }
}

static void descriptors(uint64_t *gdt, char *tss)
{
    gdt[2] = 0x00af9b000000ffff;
    gdt[3] = 0x00cf93000000ffff;
    gdt[5] = 0x00cff3000000ffff;
    gdt[6] = 0x00affb000000ffff;
    *(uint64_t *)(tss + 4) = KERNEL_STACK + 4096;
    *(uint64_t *)(tss + 36) = KERNEL_STACK + 4096;
}

static void kernel_pages(struct space *space, uint64_t cr3, const void *text, uint64_t text_at)
{
    gates(at(space, G_IDT), text_at);
    descriptors(at(space, G_GDT), at(space, G_TSS));
    copy(at(space, G_KTEXT), text, 4096);
    map(space, cr3, KERNEL_IDT, G_IDT, KERNEL);
    map(space, cr3, KERNEL_GDT, G_GDT, KERNEL);
    map(space, cr3, KERNEL_TSS, G_TSS, KERNEL);
    map(space, cr3, KERNEL_STACK, G_STACK, KERNEL);
    map(space, cr3, text_at, G_KTEXT, KERNEL);
}

static void map_pages(struct space *space, uint64_t cr3, uint64_t virtual, uint64_t physical, unsigned pages, uint64_t flags)
{
    for (unsigned page = 0; page < pages; page++) map(space, cr3, virtual + page * 4096, physical + page * 4096, flags);
}

/* --- the client --- */

static void client_tables(uint64_t cr3)
{
    struct space *client = &machine.client;
    kernel_pages(client, cr3, client_kernel_text, CLIENT_KTEXT);
    map_pages(client, cr3, CLIENT_TEXT, G_TEXT, (unsigned)(client_end - client_start) / 4096, WRITABLE);
    map_pages(client, cr3, CLIENT_STACK, G_USER_STACK, 4, WRITABLE);
    map(client, cr3, SLOT, G_SLOT, WRITABLE);
    map(client, cr3, RESULTS, G_RESULTS, WRITABLE);
    map(client, cr3, SCRATCH, G_SCRATCH, WRITABLE);
    map(client, cr3, TRAMPOLINE, G_TRAMPOLINE, READ_ONLY);
    map(client, cr3, TABLE, G_TABLE, READ_ONLY);
    map_pages(client, cr3, WINDOW, G_WINDOW, WINDOW_PAGES, WRITABLE);
}

static void client_memory(void)
{
    struct space *client = &machine.client;
    if (client_end - client_start > G_USER_STACK - G_TEXT) panic("the client's program is too large", client_end - client_start);
    for (uint64_t page = 0; page < GUEST_PAGES; page++) fill(at(client, page * 4096), 0, 4096);
    for (int64_t done = 0; done < client_end - client_start; done += 4096) copy(at(client, G_TEXT + done), client_at + done, 4096);
    client->next = G_TABLES;
    client_tables(CLIENT_CR3);
    /* A process that nobody registered, with the same pages. */
    client_tables(STRANGER_CR3);
}

void client_reset(void *rip)
{
    client_memory();
    vcpu_reset(&machine.vcpu, 3, CLIENT_CR3, (uint64_t)rip, CLIENT_STACK + 4 * 4096 - 8);
    wrmsr(0xc0000081, 0x10ull << 32 | 0x20ull << 48);
    wrmsr(0xc0000082, CLIENT_KTEXT + ENTRY_OFFSET);
    wrmsr(0xc0000084, 0x47700);
    wrmsr(0xc0000102, 0);
    vmwrite(GUEST_FS_BASE, RESULTS);
    vmwrite(GUEST_GS_BASE, 0);
    invalidate_all();
}

/* --- the server VM: one kernel, the client's API server, and another tenant's process --- */

static void server_process(struct space *server, uint64_t cr3)
{
    map_pages(server, cr3, SERVER_TEXT, G_TEXT, (unsigned)(server_end - server_start) / 4096, READ_ONLY);
    map_pages(server, cr3, SERVER_DATA, G_DATA, 4, WRITABLE | PTE_NO_EXECUTE);
    map_pages(server, cr3, SERVER_STACK, 0x30000, 4, WRITABLE | PTE_NO_EXECUTE);
    map(server, cr3, SERVER_SECRETS, G_SECRETS, WRITABLE | PTE_NO_EXECUTE);
    map(server, cr3, BERTH, G_BERTH, WRITABLE | PTE_NO_EXECUTE);
    map(server, cr3, TRAMPOLINE, G_TRAMPOLINE, READ_ONLY);
    map(server, cr3, TABLE, G_TABLE, WRITABLE | PTE_NO_EXECUTE);
    /* The paper says nothing of executing what is shared. */
    map_pages(server, cr3, WINDOW, G_SERVER_WINDOW, WINDOW_PAGES, WRITABLE | (WHOLE ? 0 : PTE_NO_EXECUTE));
}

static void server_make(void)
{
    struct space *server = &machine.server;
    ept_add_ram(server, GUEST_PAGES);
    ept_map(server, G_TRAMPOLINE, machine.trampoline, EPT_READ | EPT_EXECUTE);
    ept_map(server, G_TABLE, machine.table, EPT_READ | EPT_WRITE);
    for (int64_t done = 0; done < server_end - server_start; done += 4096) copy(at(server, G_TEXT + done), server_at + done, 4096);
    for (int page = 0; page < WINDOW_PAGES; page++) machine.window[page] = at(server, G_SERVER_WINDOW + page * 4096);
    server->next = G_TABLES;
    kernel_pages(server, SERVER_CR3, server_kernel_text, SERVER_KTEXT);
    map(server, SERVER_CR3, SERVER_CANARY, G_CANARY, KERNEL);
    server_process(server, SERVER_CR3);
    server_process(server, SERVER_USER_CR3);
    if (WHOLE) {
        /* The paper's 4.2 (1): the server's entry of system calls where the client's LSTAR points. */
        map(server, SERVER_CR3, CLIENT_KTEXT, G_KTEXT, KERNEL);
        map(server, SERVER_USER_CR3, CLIENT_KTEXT, G_KTEXT, KERNEL);
    }
    map(server, OTHER_CR3, SERVER_DATA, G_OTHER, WRITABLE | PTE_NO_EXECUTE);
    map(server, OTHER_CR3, TRAMPOLINE, G_TRAMPOLINE, READ_ONLY);
    canary_fill(CANARY_SERVER_KERNEL, at(server, G_CANARY));
    canary_fill(CANARY_OTHER_PROCESS, at(server, G_OTHER));
    *(uint64_t *)at(server, G_SECRETS) = 1;
}

/* --- a domain: what the API server's process maps in user mode, the trampoline, stubs; nothing else --- */

static uint64_t private_page(struct space *domain, void *page, unsigned permissions)
{
    uint64_t physical = domain->next;
    domain->next += 4096;
    ept_map(domain, physical, page, permissions);
    return physical;
}

static void grant_page(void *context, uint64_t virtual, uint64_t entry)
{
    struct space *domain = context;
    unsigned permissions = EPT_READ;
    void *page = at(&machine.server, entry & 0xffffffffff000);
    bool fixed = virtual == TRAMPOLINE || virtual == TABLE;
    if ((entry & PTE_WRITE) && !fixed) permissions |= EPT_WRITE;
    if (!(entry & PTE_NO_EXECUTE)) permissions |= EPT_EXECUTE;
    uint64_t physical = private_page(domain, page, permissions);
    uint64_t flags = READ_ONLY | (permissions & EPT_WRITE ? PTE_WRITE : 0) | (permissions & EPT_EXECUTE ? 0 : PTE_NO_EXECUTE);
    map(domain, CLIENT_CR3, virtual, physical, flags);
    if (virtual - WINDOW < WINDOW_PAGES * 4096) machine.window_in_domain[(virtual - WINDOW) / 4096] = physical;
}

/* The client's tables of a kernel lead here: every way into a kernel is a VMCALL. */
static void add_stubs(struct space *domain)
{
    void *idt = page_alloc(), *gdt = page_alloc(), *tss = page_alloc();
    machine.stubs = page_alloc();
    machine.stub_stack = page_alloc();
    copy(machine.stubs, stub_text, 4096);
    gates(idt, CLIENT_KTEXT);
    descriptors(gdt, tss);
    map(domain, CLIENT_CR3, KERNEL_IDT, private_page(domain, idt, EPT_READ), PTE_PRESENT);
    map(domain, CLIENT_CR3, KERNEL_GDT, private_page(domain, gdt, EPT_READ), PTE_PRESENT);
    map(domain, CLIENT_CR3, KERNEL_TSS, private_page(domain, tss, EPT_READ), PTE_PRESENT);
    map(domain, CLIENT_CR3, KERNEL_STACK, private_page(domain, machine.stub_stack, EPT_READ | EPT_WRITE), KERNEL);
    map(domain, CLIENT_CR3, CLIENT_KTEXT, private_page(domain, machine.stubs, EPT_READ | EPT_EXECUTE), PTE_PRESENT);
}

static void domain_make(struct space *domain, uint64_t server_cr3)
{
    domain->private = true;
    domain->root = page_alloc();
    domain->next = G_PRIVATE;
    /* The top table is where the client's CR3 points. */
    ept_map(domain, CLIENT_CR3, page_alloc(), EPT_READ);
    each_user_page(&machine.server, server_cr3, grant_page, domain);
    add_stubs(domain);
}

bool grant(uint64_t virtual)
{
    uint64_t *entry = entry_of(&machine.server, SERVER_USER_CR3, virtual);
    if (!entry || !(*entry & PTE_PRESENT) || !(*entry & PTE_USER)) return false;
    uint64_t *old = entry_of(&machine.domain, CLIENT_CR3, virtual);
    if (old && *old) ept_map(&machine.domain, *old & 0xffffffffff000, at(&machine.server, *entry & 0xffffffffff000), EPT_READ | EPT_WRITE);
    else grant_page(&machine.domain, virtual, *entry);
    return true;
}

struct search {
    const void *page;
    uint64_t found;
};

static void search_frame(void *context, uint64_t physical, void *page, unsigned permissions)
{
    struct search *search = context;
    (void)permissions;
    if (page == search->page) search->found = physical;
}

uint64_t in_domain(const void *page)
{
    struct search search = {page, 0};
    each_frame(WHOLE ? &machine.paper : &machine.domain, search_frame, &search);
    return search.found;
}

/* --- the paper's way: the server VM's extended page table, with the client's CR3 an alias of the process's tables --- */

static void add_frame(void *context, uint64_t physical, void *page, unsigned permissions)
{
    ept_map(context, physical, page, physical == G_TABLE ? EPT_READ : permissions);
}

void link_up(bool kernel)
{
    struct space *target = WHOLE ? &machine.paper : &machine.domain;
    *target = (struct space){0};
    if (WHOLE) {
        each_frame(&machine.server, add_frame, target);
        ept_map(target, CLIENT_CR3, at(&machine.server, kernel ? SERVER_CR3 : SERVER_USER_CR3), ALL);
        for (int page = 0; page < WINDOW_PAGES; page++) machine.window_in_domain[page] = G_SERVER_WINDOW + page * 4096;
    } else {
        machine.other = (struct space){0};
        domain_make(&machine.other, OTHER_CR3);
        domain_make(target, SERVER_USER_CR3);
    }
    machine.list[1] = eptp(target);
    invalidate_all();
}

void machine_make(void)
{
    machine.trampoline = page_alloc();
    copy(machine.trampoline, trampoline_at, 4096);
    machine.table = page_alloc();
    machine.list = page_alloc();
    canary_fill(CANARY_HOST, page_alloc());
    server_make();
    struct space *client = &machine.client;
    ept_add_ram(client, GUEST_PAGES);
    ept_map(client, G_TRAMPOLINE, machine.trampoline, EPT_READ | EPT_EXECUTE);
    ept_map(client, G_TABLE, machine.table, EPT_READ);
    for (int page = 0; page < WINDOW_PAGES; page++) ept_map(client, G_WINDOW + page * 4096, machine.window[page], EPT_READ | EPT_WRITE);
    vcpu_make(&machine.server_vcpu, &machine.server);
    machine.server_vcpu.lstar = SERVER_KTEXT + ENTRY_OFFSET;
    wrmsr(0xc0000082, machine.server_vcpu.lstar);
    vcpu_make(&machine.vcpu, client);
    machine.list[0] = eptp(client);
    vmwrite(EPTP_LIST, (uint64_t)machine.list);
    vmwrite(VM_FUNCTION_CONTROL, 1);
}
