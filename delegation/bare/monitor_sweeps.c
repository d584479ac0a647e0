/* Attacks by trying everything: entries of the list, functions, addresses of VMFUNC, values of CR3, guest-physical pages. */
#include "monitor.h"

enum { KERNEL_PAGE = PTE_WRITE | PTE_PRESENT };
static const uint8_t vmfunc[] = {0x0f, 0x01, 0xd4};

/* The same numbers in each run. */
static uint64_t random_state = 0x9e3779b97f4a7c15;
static uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* What the list leads to. */
static struct space *target(void) { return WHOLE ? &machine.paper : &machine.domain; }

/* --- entries of the list and functions --- */

/* VMFUNC with these registers, in ring 0 or 3. */
static struct outcome function(unsigned ring, uint64_t rax, uint64_t rcx)
{
    vcpu_reset(&machine.vcpu, ring, CLIENT_CR3, SCRATCH, 0);
    vmwrite(GUEST_CR4, CR4_BASE | CR4_SMEP);
    machine.vcpu.registers.rax = rax;
    machine.vcpu.registers.rcx = rcx;
    return run_client();
}

static void list_and_functions(void)
{
    static const uint64_t beyond[] = {512, 513, 4096, 0x7fffffff, 0x80000000, 0xffffffff};
    unsigned entries = 0, functions = 0, undefined = 0;
    for (unsigned ring = 0; ring <= 3; ring += 3) {
        attack_start(ring, false);
        plant(SCRATCH, vmfunc, sizeof vmfunc, KERNEL_PAGE | (ring ? PTE_USER : 0));
        for (uint64_t entry = 2; entry < 512; entry++) entries += function(ring, 0, entry).reason == REASON_VMFUNC;
        for (unsigned at = 0; at < 6; at++) entries += function(ring, 0, beyond[at]).reason == REASON_VMFUNC;
        for (uint64_t number = 1; number < 64; number++) functions += function(ring, number, 1).reason == REASON_VMFUNC;
        for (unsigned at = 0; at < 6; at++) {
            struct outcome outcome = function(ring, at ? beyond[at] : 64, 1);
            undefined += outcome.reason == REASON_VMCALL && !outcome.in_domain && outcome.vector == 6;
        }
    }
    check(entries == 2 * 516, "entries 2 to 511 of the list and six beyond, rings 0 and 3: exit reason 59 each (%u)", entries);
    check(functions == 2 * 63, "functions 1 to 63, rings 0 and 3: exit reason 59 each (%u)", functions);
    check(undefined == 2 * 6, "functions from 64 on: an exception in the client itself (%u)", undefined);
    struct outcome outcome = function(3, 0, 7);
    check(outcome.reason == 59, "entry 7 of the list: exit reason %u", outcome.reason);
    uint64_t entry = machine.list[1];
    machine.list[1] = 0;
    invalidate_all();
    check(function(3, 0, 1).reason == REASON_VMFUNC, "entry 1 of a session that has ended: exit reason 59");
    machine.list[1] = entry;
}

/* --- what the domain holds --- */

struct census {
    unsigned frames, foreign, writable_fixed, tables;
};

static unsigned user_pages_of_server;
static void *user_page[64];

static void note_user_page(void *context, uint64_t virtual, uint64_t entry)
{
    (void)context, (void)virtual;
    if (user_pages_of_server < 64) user_page[user_pages_of_server++] = at(&machine.server, entry & 0xffffffffff000);
}

/* A frame is a page of the API server's user memory, or one that the monitor allocated for this domain and no VM has. */
static void count_frame(void *context, uint64_t physical, void *page, unsigned permissions)
{
    struct census *census = context;
    (void)physical;
    census->frames++;
    bool fixed = page == machine.trampoline || page == machine.table, user = fixed;
    for (unsigned at = 0; at < user_pages_of_server; at++) user |= user_page[at] == page;
    if (fixed) census->writable_fixed += (permissions & EPT_WRITE) != 0;
    if (user) return;
    bool of_a_vm = false;
    for (uint64_t other = 0; other < GUEST_PAGES * 4096; other += 4096)
        of_a_vm |= at(&machine.server, other) == page || at(&machine.client, other) == page;
    census->foreign += of_a_vm || page == machine.canary[CANARY_HOST] || page == machine.list || page < (void *)POOL;
    census->tables++;
    census->writable_fixed += (permissions & EPT_WRITE) && page != machine.stub_stack;
}

static void is_shared(void *context, uint64_t physical, void *page, unsigned permissions)
{
    (void)physical, (void)permissions;
    *(unsigned *)context += in_domain(page) != 0 && page != machine.trampoline;
}

static void contents(void)
{
    unsigned shared = 0;
    struct census census = {0};
    attack_start(0, false);
    each_user_page(&machine.server, SERVER_USER_CR3, note_user_page, 0);
    each_frame(target(), count_frame, &census);
    check(census.foreign == 0 && census.writable_fixed == 0,
          "the domain's %u frames: user pages of the API server, and %u tables and stubs that no VM has", census.frames, census.tables);
    each_frame(&machine.other, is_shared, &shared);
    check(shared == 0 && ept_lookup(&machine.other, CLIENT_CR3, 0), "the domain of another tenant's session shares the trampoline alone");
}

/* --- guest-physical pages, read and written with tables of the client's own --- */

/* The server's RAM and as much again. */
enum { PHYSICAL_PAGES = 2 * GUEST_PAGES };

static void physical_reads(void)
{
    unsigned read = 0, foreign = 0, missed = 0, leaks = 0;
    attack_start(0, false);
    for (uint64_t page = 0; page < PHYSICAL_PAGES; page++) {
        uint64_t physical = page * 4096;
        bool mapped = ept_lookup(target(), physical, 0);
        attack_again(0);
        bool done = read_physical(physical).done;
        read += done;
        foreign += done && !mapped;
        missed += mapped && !done;
        leaks += in_registers() != CANARIES;
    }
    struct outcome last = {0};
    leaks += leaked(&last) != CANARIES;
    check(read > 20 && foreign == 0 && missed == 0 && (leaks == 0) == !WHOLE, "CR3 = tables in the window, reads of %u guest-physical pages: %u are there, %s",
          PHYSICAL_PAGES, read, WHOLE ? "the server's kernel among them" : "each one the domain's");
}

static void physical_writes(void)
{
    unsigned wrong = 0, written = 0;
    bool unchanged = true;
    attack_start(0, false);
    for (uint64_t page = 0; page < PHYSICAL_PAGES; page++) {
        unsigned permissions = 0;
        bool mapped = ept_lookup(target(), page * 4096, &permissions);
        attack_again(0);
        struct outcome outcome = write_physical(page * 4096);
        bool refused = outcome.reason == REASON_EPT_VIOLATION && outcome.rip == (uint64_t)was_handed_over;
        written += !refused;
        wrong += refused == (mapped && (permissions & EPT_WRITE));
    }
    for (unsigned word = 0; word < 512; word++) unchanged &= ((uint64_t *)machine.trampoline)[word] == ((uint64_t *)trampoline_at)[word];
    check(wrong == 0 && written > 10 && unchanged && canaries_unchanged(),
          "the same, writes: %u pages are the API server's data and the stack of the stubs, none is a table or code", written);
}

/* --- every page of the domain as CR3 --- */

static unsigned cr3_tried, cr3_leaks;

static void as_cr3(void *context, uint64_t physical, void *page, unsigned permissions)
{
    (void)context, (void)permissions, (void)page;
    if (physical >= GUEST_PAGES * 4096) return;
    /* The client's memory at that address has its usual tables, and the code is at addresses that the domain has and has not. */
    static const uint64_t places[] = {SERVER_TEXT + 0x20, WINDOW_CODE, SERVER_KTEXT + COPY_OFFSET, CLIENT_KTEXT + ENTRY_OFFSET};
    for (unsigned at_place = 0; at_place < 4; at_place++) {
        vcpu_reset(&machine.vcpu, 0, physical, places[at_place] - sizeof vmfunc, WINDOW_STACK);
        vmwrite(GUEST_CR4, CR4_BASE);
        plant(places[at_place] - sizeof vmfunc, vmfunc, sizeof vmfunc, KERNEL_PAGE);
        copy(at(&machine.client, physical), at(&machine.client, CLIENT_CR3), 4096);
        machine.vcpu.registers.rcx = 1;
        machine.vcpu.registers.rsi = SERVER_CANARY;
        machine.vcpu.registers.rdi = WINDOW_FOUND;
        invalidate_all();
        run_client();
        cr3_leaks += in_registers() != CANARIES;
        cr3_tried++;
    }
}

/* Pages of the window lead to everything: each entry is a page of guest-physical memory, in turn. */
static void every_cr3(void)
{
    attack_start(0, false);
    for (int page = 0; page < WINDOW_PAGES; page++)
        for (uint64_t entry = 0; entry < 512; entry++)
            ((uint64_t *)machine.window[page])[entry] = ((entry + (uint64_t)page * 64) & 511) << 12 | 0x67;
    each_frame(target(), as_cr3, 0);
    struct outcome last = {0};
    cr3_leaks += leaked(&last) != CANARIES;
    check(cr3_tried >= 100 && cr3_leaks == 0 && canaries_unchanged(), "CR3 = each page of the domain and of the window, %u switches: contained", cr3_tried);
}

/* --- VMFUNC anywhere --- */

static uint64_t random_address(uint64_t kind)
{
    uint64_t number = random_number();
    switch (kind % 8) {
    case 0: case 1: return number & 0x7fffffffffff;
    case 2: case 3: return SERVER_TEXT + number % 4096;
    case 4: return TRAMPOLINE + number % 4096;
    case 5: return CLIENT_KTEXT + number % 4096;
    case 6: return (number & 1 ? WINDOW : SERVER_KTEXT) + number % 0x8000;
    default: return 0xffff800000000000 | number;
    }
}

static uint64_t random_register(void)
{
    static const uint64_t useful[] = {SERVER_CANARY, WINDOW_FOUND, WINDOW_STACK, BERTH, TABLE, SERVER_DATA, G_PRIVATE, CLIENT_CR3, 64, 0};
    uint64_t number = random_number();
    return number % 11 < 10 ? useful[number % 11] : number;
}

/* Tables of the client's that have this page and the next one, in place of a top entry; returned, to be put back. */
static uint64_t plant_anywhere(uint64_t virtual)
{
    enum { TABLES = 0xb0000 };
    uint64_t *top = (uint64_t *)at(&machine.client, CLIENT_CR3) + (virtual >> 39 & 511), old = *top;
    *top = 0;
    for (uint64_t page = 0; page < 8; page++) fill(at(&machine.client, TABLES + page * 4096), 0, 4096);
    machine.client.next = TABLES;
    plant(virtual, vmfunc, sizeof vmfunc, KERNEL_PAGE | (machine.vcpu.registers.r15 ? PTE_USER : 0));
    return old;
}

static void addresses(void)
{
    enum { TRIES = 10000 };
    unsigned ends[64] = {0}, leaks = 0, inside = 0;
    attack_start(0, false);
    for (uint64_t round = 0; round < TRIES; round++) {
        uint64_t virtual = random_address(round), *registers = &machine.vcpu.registers.rax;
        if ((virtual + 2) >> 39 != virtual >> 39) continue;
        unsigned ring = random_number() & 1 ? 3 : 0;
        vcpu_reset(&machine.vcpu, ring, CLIENT_CR3, virtual, random_number() & 1 ? WINDOW_STACK : SERVER_STACK + 0x1800);
        vmwrite(GUEST_CR4, CR4_BASE | (random_number() & 1 ? CR4_SMEP : 0));
        for (unsigned at_register = 1; at_register < 15; at_register++) registers[at_register] = random_register();
        machine.vcpu.registers.rcx = 1;
        machine.vcpu.registers.r15 = ring;
        policy.slice = 3000;
        uint64_t old = plant_anywhere(virtual);
        invalidate_all();
        struct outcome outcome = run_client();
        *((uint64_t *)at(&machine.client, CLIENT_CR3) + (virtual >> 39 & 511)) = old;
        ends[outcome.reason & 63]++;
        inside += outcome.in_domain;
        for (unsigned at_register = 0; at_register < 15; at_register++) leaks += canary_of(registers[at_register]) != CANARIES;
    }
    struct outcome last = {0};
    leaks += leaked(&last) != CANARIES;
    print("figure: %u switches at random addresses: %u ended in the domain; %u at a stub, %u with an EPT violation, %u with a triple fault, %u at their slice\n",
          TRIES, inside, ends[REASON_VMCALL], ends[REASON_EPT_VIOLATION], ends[REASON_TRIPLE_FAULT], ends[REASON_TIMER]);
    check(inside > TRIES / 2 && leaks == 0 && canaries_unchanged(), "VMFUNC at %u random addresses, rings 0 and 3, SMEP on and off: contained", TRIES);
}

/* What another thread of the client's, or the API server, may write at any moment. */
static unsigned overwritten_page;

static void overwrite(void)
{
    uint64_t *pages[] = {at(&machine.server, G_BERTH), at(&machine.client, G_SLOT), machine.window[0], machine.table, at(&machine.server, 0x31000) + 0xf80};
    for (unsigned word = 0; word < 16; word++) pages[overwritten_page][word] = random_number() & 1 ? random_register() : random_number();
    if (random_number() & 1) *(uint32_t *)at(&machine.server, G_BERTH + BERTH_STATE) = BORROWED;
}

/* Random words in the berth, the slot, the window, the table and the server's stack at any tick of a call. Its context is handed over
 * as it is. */
static void overwritten(void)
{
    enum { ROUNDS = 2000 };
    unsigned returned = 0, leaks = 0;
    attack_start(3, false);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        server_start_up();
        attack_again(3);
        policy = (struct policy){.slice = 1 + random_number() % 130, .hand_over = true, .grants = true, .once = true, .at_slice = overwrite};
        overwritten_page = round % 5;
        machine.vcpu.registers.rdi = random_number() % (HANDLERS + 1);
        machine.vcpu.registers.rsi = random_register();
        *(uint64_t *)at(&machine.client, G_USER_STACK + 0x2000 - 8) = (uint64_t)client_report;
        set_instruction((uint64_t)trampoline, CLIENT_STACK + 0x2000 - 8);
        returned += run_client().done;
        leaks += in_registers() != CANARIES;
    }
    struct outcome last = {0};
    leaks += leaked(&last) != CANARIES;
    server_start_up();
    print("figure: %u calls with berth, slot, window, table or stack overwritten: %u returned to the client's program\n", ROUNDS, returned);
    check(returned > ROUNDS / 10 && returned < ROUNDS && leaks == 0 && canaries_unchanged(),
          "random words in berth, slot, window, table and the server's stack during %u calls: contained", ROUNDS);
}

void sweeps(void)
{
    list_and_functions();
    physical_reads();
    if (WHOLE) return;
    physical_writes();
    contents();
    every_cr3();
    addresses();
    overwritten();
    server_start_up();
    check(canaries_unchanged(), "after all attacks: the server's kernel, the other tenant's process and the host are as before");
}
