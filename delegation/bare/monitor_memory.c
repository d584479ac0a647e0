/* Physical pages, extended page tables, and page tables of guests. Nothing is freed: a run is short. */
#include "monitor.h"

static uint64_t next_page = POOL;

/* By words where that is possible: the emulator takes a step for each. */
void fill(void *to, uint8_t byte, uint64_t bytes)
{
    uint64_t words = bytes / 8, rest = bytes % 8;
    __asm__ volatile("rep stosq" : "+D"(to), "+c"(words) : "a"(byte * 0x0101010101010101ull) : "memory");
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(rest) : "a"(byte) : "memory");
}

void copy(void *to, const void *from, uint64_t bytes)
{
    uint64_t words = bytes / 8, rest = bytes % 8;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory");
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(rest) : : "memory");
}

/* The compiler writes calls of them. */
void *memset(void *to, int byte, uint64_t bytes) { return fill(to, (uint8_t)byte, bytes), to; }
void *memcpy(void *to, const void *from, uint64_t bytes) { return copy(to, from, bytes), to; }

void *page_alloc(void)
{
    if (next_page >= POOL_END) panic("no page is left", next_page);
    void *page = (void *)next_page;
    next_page += 4096;
    fill(page, 0, 4096);
    return page;
}

/* Write-back, four levels. Bit 6 is clear, so that walks of page tables that a guest may only read are no writes. */
uint64_t eptp(const struct space *space) { return (uint64_t)space->root | 3 << 3 | 6; }

static uint64_t *ept_entry(const struct space *space, uint64_t physical, bool make)
{
    uint64_t *table = space->root;
    for (int shift = 39; shift > 12; shift -= 9) {
        uint64_t *entry = &table[physical >> shift & 511];
        if (!*entry) {
            if (!make) return 0;
            *entry = (uint64_t)page_alloc() | EPT_READ | EPT_WRITE | EPT_EXECUTE;
        }
        table = (uint64_t *)(*entry & ~0xfffull);
    }
    return &table[physical >> 12 & 511];
}

void ept_map(struct space *space, uint64_t physical, void *page, unsigned permissions)
{
    if (!space->root) space->root = page_alloc();
    *ept_entry(space, physical, true) = (uint64_t)page | 6 << 3 | permissions;
}

void ept_zap(struct space *space, uint64_t physical)
{
    uint64_t *entry = ept_entry(space, physical, false);
    if (entry) *entry = 0;
    note(EVENT_ZAP);
}

void *ept_lookup(const struct space *space, uint64_t physical, unsigned *permissions)
{
    uint64_t *entry = physical >> 48 ? 0 : ept_entry(space, physical, false);
    if (!entry || !*entry) return 0;
    if (permissions) *permissions = *entry & 7;
    return (void *)(*entry & ~0xfffull);
}

void ept_add_ram(struct space *space, unsigned pages)
{
    for (unsigned page = 0; page < pages; page++)
        ept_map(space, page * 4096ull, page_alloc(), EPT_READ | EPT_WRITE | EPT_EXECUTE);
}

void *at(const struct space *space, uint64_t physical)
{
    char *page = ept_lookup(space, physical & ~0xfffull, 0);
    if (!page) panic("no memory at a guest-physical address", physical);
    return page + (physical & 0xfff);
}

static uint64_t table_page(struct space *space)
{
    uint64_t physical = space->next;
    space->next += 4096;
    if (space->private) ept_map(space, physical, page_alloc(), EPT_READ);
    else fill(at(space, physical), 0, 4096);
    return physical;
}

/* Accessed and dirty (0x60) are set from the start, so that no walk writes a table. */
void map(struct space *space, uint64_t cr3, uint64_t virtual, uint64_t physical, uint64_t flags)
{
    uint64_t table = cr3;
    for (int shift = 39; shift > 12; shift -= 9) {
        uint64_t *entry = (uint64_t *)at(space, table) + (virtual >> shift & 511);
        if (!*entry) *entry = table_page(space) | 0x60 | PTE_PRESENT | PTE_WRITE | PTE_USER;
        table = *entry & 0xffffffffff000;
    }
    ((uint64_t *)at(space, table))[virtual >> 12 & 511] = physical | flags | 0x60 | PTE_PRESENT;
}

uint64_t *entry_of(const struct space *space, uint64_t cr3, uint64_t virtual)
{
    uint64_t table = cr3;
    for (int shift = 39; shift > 12; shift -= 9) {
        uint64_t *entry = (uint64_t *)at(space, table) + (virtual >> shift & 511);
        if (!(*entry & PTE_PRESENT)) return 0;
        table = *entry & 0xffffffffff000;
    }
    return (uint64_t *)at(space, table) + (virtual >> 12 & 511);
}

static void visit_tables(const struct space *space, uint64_t table, int shift, uint64_t base, page_visitor *visit, void *context)
{
    for (uint64_t index = 0; index < 512; index++) {
        uint64_t entry = ((uint64_t *)at(space, table))[index], virtual = base + (index << shift);
        if (!(entry & PTE_PRESENT) || !(entry & PTE_USER)) continue;
        if (shift == 12) visit(context, virtual, entry);
        else visit_tables(space, entry & 0xffffffffff000, shift - 9, virtual, visit, context);
    }
}

/* The lower half alone: user code has nothing in the upper one. */
void each_user_page(const struct space *space, uint64_t cr3, page_visitor *visit, void *context)
{
    for (uint64_t index = 0; index < 256; index++) {
        uint64_t entry = ((uint64_t *)at(space, cr3))[index];
        if ((entry & PTE_PRESENT) && (entry & PTE_USER))
            visit_tables(space, entry & 0xffffffffff000, 30, index << 39, visit, context);
    }
}

static void visit_frames(uint64_t *table, int shift, uint64_t base, frame_visitor *visit, void *context)
{
    for (uint64_t index = 0; index < 512; index++) {
        if (!table[index]) continue;
        uint64_t *below = (uint64_t *)(table[index] & ~0xfffull);
        if (shift == 12) visit(context, base + (index << 12), below, table[index] & 7);
        else visit_frames(below, shift - 9, base + (index << shift), visit, context);
    }
}

void each_frame(const struct space *space, frame_visitor *visit, void *context) { visit_frames(space->root, 39, 0, visit, context); }
