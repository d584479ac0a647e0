/* Tables of functions in tables, of a library that is older than its header. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "testapi.h"

/* The catalog ends there. */
#define KNOWN offsetof(ta_catalog, later)

static ta_report count(ta_buffer buffer, uint64_t *ones) {
    uint8_t bytes[16];
    ta_ledger ledger;
    if (ta_buffer_read(buffer, 0, sizeof bytes, bytes) != TA_OK || !ones)
        return ta_ledger_create(0, &ledger);
    *ones = 0;
    for (size_t i = 0; i < sizeof bytes; i++)
        *ones += (uint64_t)__builtin_popcount(bytes[i]);
    return NULL;
}
static ta_report print(ta_buffer buffer) { return count(buffer, NULL); }
static int32_t scale(int32_t value) { return value * 10; }

static int32_t twice(int32_t value) { return 2 * value; }
static const char *extra_name(void) { return "extra"; }
static ta_report rename_extra(const char *name) { return name ? NULL : count(NULL, NULL); }
/* One of them is of a kind that no header has. */
static const ta_extra_name named = {{TA_EXTRA_NAME, 5, NULL}, extra_name, rename_extra};
static const ta_extra unknown = {4711, 1, &named.base};
static const ta_extra_twice doubling = {{TA_EXTRA_TWICE, 7, &unknown}, twice};

/* At the end of a page: reading more of it than there is ends the process. */
static const ta_catalog *make(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || munmap(pages + page, page))
        abort();
    ta_catalog all = {.struct_size = KNOWN, .version = {1, 9}, .more = "", .count = count, .print = print,
                      .scale = scale, .extras = &doubling.base};
    return memcpy(pages + page - KNOWN, &all, KNOWN);
}
static const ta_catalog *catalog(uint16_t major) {
    static const ta_catalog *made;
    if (!made)
        made = make();
    return major == made->version.major ? made : NULL;
}
static const char *name(void) { return "catalogs"; }

static const ta_catalogs catalogs = {catalog, name};

const ta_catalogs *ta_get_catalogs(void) { return &catalogs; }
