/* Tables of functions in tables.
 * catalogs           what is equal natively and remotely
 * catalogs remoted   what the guest's tables have instead of what the specification or the library lacks */
#include "check.h"
#include "testapi.h"

/* True if a library says that it has a member. */
#define HAS(table, member) ((table)->struct_size >= offsetof(ta_catalog, member) + sizeof (table)->member)

static void calls(const ta_catalog *catalog) {
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    uint64_t ones = 0;
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, 16, &buffer), TA_OK);
    CHECK_EQ(ta_buffer_fill(buffer, 0x11), TA_OK);
    CHECK(catalog->count(buffer, &ones) == NULL);
    CHECK_EQ(ones, 32);
    ta_report report = catalog->count(buffer, NULL);
    CHECK_EQ(ta_report_code(report), TA_INVALID_VALUE);
    ta_report_free(report);
    CHECK_EQ(catalog->scale(-7), -70);
    CHECK(catalog->sort == NULL);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

/* The table of that kind, if the catalog has one. */
static const void *extra(const ta_catalog *catalog, uint32_t kind) {
    const ta_extra *at = catalog->extras;
    while (at && at->kind != kind)
        at = at->next;
    return at;
}

static void extras(const ta_catalog *catalog) {
    const ta_extra_twice *doubling = extra(catalog, TA_EXTRA_TWICE);
    const ta_extra_name *named = extra(catalog, TA_EXTRA_NAME);
    CHECK(doubling && doubling->base.revision == 7);
    CHECK(named && named->base.revision == 5 && named->base.next == NULL);
    CHECK(extra(catalog, TA_EXTRA_NONE) == NULL);
    CHECK_EQ(doubling->twice(-21), -42);
    CHECK_EQ(strcmp(named->name(), "extra"), 0);
}

/* Functions that a later header has behind this one's. */
static void later(const ta_catalogs *catalogs) {
    ta_report (*const *functions)(int, const char *, double) = (ta_report (*const *)(int, const char *, double))(const void *)catalogs;
    for (size_t at = sizeof *catalogs / sizeof *functions, last = at + 16; at < last; at++) {
        ta_report report = functions[at](1, "later", 2.5);
        CHECK_EQ(ta_report_code(report), TA_UNSUPPORTED);
        ta_report_free(report);
    }
}

static void remoted(const ta_catalog *catalog) {
    /* The header's version, which is earlier than the library's. */
    CHECK_EQ(catalog->version.minor, TA_CATALOG_MINOR);
    CHECK(catalog->more == NULL);
    /* The table of a kind that nothing describes is left out, and so is a function. */
    CHECK(extra(catalog, 4711) == NULL);
    const ta_extra_name *named = extra(catalog, TA_EXTRA_NAME);
    ta_report unnamed = named->rename("name");
    CHECK_EQ(ta_report_code(unnamed), TA_UNSUPPORTED);
    ta_report_free(unnamed);
    CHECK(catalog->later == NULL);
    CHECK_EQ(catalog->serial, 0);
    CHECK(catalog->print != NULL);
    ta_report report = catalog->print(NULL);
    CHECK_EQ(ta_report_code(report), TA_UNSUPPORTED);
    ta_report_free(report);
}

int main(int argc, char **argv) {
    (void)argv;
    const ta_catalogs *catalogs = ta_get_catalogs();
    CHECK(catalogs != NULL && catalogs == ta_get_catalogs());
    CHECK_EQ(strcmp(catalogs->name(), "catalogs"), 0);
    CHECK(catalogs->catalog(0) == NULL);
    CHECK(catalogs->catalog(9999) == NULL);
    const ta_catalog *catalog = catalogs->catalog(1);
    CHECK(catalog != NULL && catalog == catalogs->catalog(1));
    CHECK_EQ(catalog->version.major, 1);
    CHECK(catalog->version.minor >= TA_CATALOG_MINOR);
    CHECK(HAS(catalog, scale) && !HAS(catalog, later));
    calls(catalog);
    extras(catalog);
    if (argc > 1) {
        remoted(catalog);
        later(catalogs);
    }
    return check_done();
}
