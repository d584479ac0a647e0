/* Handles of every shape, queries, property lists, structs with handles in them. */
#include "check.h"
#include "testapi.h"

static ta_device device;

static void queries(void) {
    char name[64];
    size_t needed = 0;
    uint32_t units = 0, count = 0;
    ta_device parent = (ta_device)1, child = NULL, devices[3] = {NULL, NULL, (ta_device)3};

    CHECK_EQ(ta_device_query(device, TA_DEVICE_NAME, 0, NULL, &needed), TA_OK);
    CHECK_EQ(needed, 5);
    memset(name, '#', sizeof name);
    CHECK_EQ(ta_device_query(device, TA_DEVICE_NAME, sizeof name, name, NULL), TA_OK);
    CHECK(strcmp(name, "zero") == 0);
    CHECK_EQ(name[6], '#');
    CHECK_EQ(ta_device_query(device, TA_DEVICE_NAME, 2, name, NULL), TA_INVALID_VALUE);
    CHECK_EQ(ta_device_query(device, TA_DEVICE_UNITS, sizeof units, &units, &needed), TA_OK);
    CHECK_EQ(units, 1);
    CHECK_EQ(needed, 4);
    CHECK_EQ(ta_device_query(device, TA_DEVICE_PARENT, sizeof parent, &parent, &needed), TA_OK);
    CHECK(parent == NULL);
    CHECK_EQ(ta_device_query(device, 99, sizeof name, name, NULL), TA_INVALID_VALUE);
    const char *vendor = NULL;
    CHECK_EQ(ta_device_query(device, TA_DEVICE_VENDOR, sizeof vendor, &vendor, &needed), TA_OK);
    CHECK(vendor && strcmp(vendor, "the vendor") == 0);

    intptr_t properties[] = {TA_PROPERTY_UNITS, 12, TA_PROPERTY_PARENT, (intptr_t)device, 0};
    CHECK_EQ(ta_device_create(properties, &child), TA_OK);
    CHECK_EQ(ta_device_query(child, TA_DEVICE_PARENT, sizeof parent, &parent, NULL), TA_OK);
    CHECK(parent == device);
    CHECK_EQ(ta_device_query(child, TA_DEVICE_UNITS, sizeof units, &units, NULL), TA_OK);
    CHECK_EQ(units, 12);
    ta_device_info info = {0};
    CHECK_EQ(ta_device_describe(child, &info), TA_OK);
    CHECK(info.name && strcmp(info.name, "created") == 0);
    CHECK(info.parent == device);
    CHECK_EQ(info.units, 12);
    CHECK_EQ(ta_device_close(child), TA_OK);
    /* An answer that was remembered is forgotten with its handle. */
    CHECK_EQ(ta_device_query(child, TA_DEVICE_UNITS, sizeof units, &units, NULL), TA_INVALID_DEVICE);
    intptr_t bad[] = {TA_PROPERTY_PARENT, (intptr_t)child, 0};
    CHECK_EQ(ta_device_create(bad, &child), TA_INVALID_DEVICE);
    intptr_t unknown[] = {0x999, 1, 0};
    CHECK_EQ(ta_device_create(unknown, &child), TA_INVALID_VALUE);
    CHECK_EQ(ta_device_create(NULL, &child), TA_OK);
    CHECK_EQ(ta_device_close(child), TA_OK);

    CHECK_EQ(ta_device_list(0, NULL, &count), TA_OK);
    CHECK_EQ(count, 2);
    CHECK_EQ(ta_device_list(3, devices, NULL), TA_OK);
    CHECK(devices[0] && devices[1] && devices[2] == (ta_device)3);
    CHECK_EQ(ta_device_query(devices[1], TA_DEVICE_PARENT, sizeof parent, &parent, NULL), TA_OK);
    CHECK(parent == devices[0]);
    ta_device again[1] = {NULL};
    CHECK_EQ(ta_device_list(1, again, &count), TA_OK);
    CHECK(again[0] == devices[0]);
    CHECK_EQ(ta_device_list(0, NULL, NULL), TA_INVALID_VALUE);
}

static void counted(void) {
    ta_event event = NULL, several[5];
    uint32_t references = 0;
    uint64_t sum = 0;
    CHECK_EQ(ta_event_create(&event), TA_OK);
    CHECK_EQ(ta_event_retain(event), TA_OK);
    CHECK_EQ(ta_event_references(event, &references), TA_OK);
    CHECK_EQ(references, 2);
    CHECK_EQ(ta_event_release(event), TA_OK);
    CHECK_EQ(ta_event_references(event, &references), TA_OK);
    CHECK_EQ(references, 1);
    CHECK_EQ(ta_event_release(event), TA_OK);
    CHECK_EQ(ta_event_release(event), TA_INVALID_EVENT);
    CHECK_EQ(ta_event_retain(event), TA_INVALID_EVENT);
    CHECK_EQ(ta_event_retain(NULL), TA_INVALID_EVENT);

    CHECK_EQ(ta_events_create(5, several), TA_OK);
    for (uint64_t i = 0; i < 5; i++)
        CHECK_EQ(ta_event_signal(several[i], 50 - 10 * i), TA_OK);
    CHECK_EQ(ta_events_sum(5, several, &sum), TA_OK);
    CHECK_EQ(sum, 150);
    ta_event before[5];
    memcpy(before, several, sizeof before);
    CHECK_EQ(ta_events_sort(5, several), TA_OK);
    CHECK(several[0] == before[4] && several[2] == before[2] && several[4] == before[0]);
    CHECK_EQ(ta_events_sum(0, NULL, &sum), TA_OK);
    CHECK_EQ(sum, 0);
    CHECK_EQ(ta_event_release(several[3]), TA_OK);
    CHECK_EQ(ta_events_sum(5, several, &sum), TA_INVALID_EVENT);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(ta_event_release(several[i]), i == 3 ? TA_INVALID_EVENT : TA_OK);
    /* A handle of one kind is none of another. */
    CHECK_EQ(ta_event_release((ta_event)device), TA_INVALID_EVENT);
}

static void numbers(void) {
    ta_slot slots[3];
    int32_t value = 0;
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ta_slot_take(&slots[i]), TA_OK);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ta_slot_set(slots[i], 100 + i), TA_OK);
    CHECK_EQ(ta_slot_get(slots[1], &value), TA_OK);
    CHECK_EQ(value, 101);
    CHECK_EQ(ta_slot_give(slots[1]), TA_OK);
    CHECK_EQ(ta_slot_get(slots[1], &value), TA_INVALID_SLOT);
    CHECK_EQ(ta_slot_get(0, &value), TA_INVALID_SLOT);
    CHECK_EQ(ta_slot_get(0xffffffff, &value), TA_INVALID_SLOT);
    CHECK_EQ(ta_slot_give(slots[0]), TA_OK);
    CHECK_EQ(ta_slot_give(slots[2]), TA_OK);

    ta_address address = 0;
    size_t bytes = 0;
    CHECK_EQ(ta_address_reserve(5000, &address), TA_OK);
    CHECK(address != 0);
    CHECK_EQ(ta_address_bytes(address, &bytes), TA_OK);
    CHECK_EQ(bytes, 5000);
    CHECK_EQ(ta_address_bytes(address + 12345, &bytes), TA_INVALID_ADDRESS);
    CHECK_EQ(ta_address_release(address), TA_OK);
    CHECK_EQ(ta_address_release(address), TA_INVALID_ADDRESS);
}

static void structs(void) {
    ta_buffer from, to;
    unsigned char data[100], back[100];
    size_t copied = 0;
    for (int i = 0; i < 100; i++)
        data[i] = (unsigned char)i;
    CHECK_EQ(ta_buffer_create(device, 100, &from), TA_OK);
    CHECK_EQ(ta_buffer_create(device, 100, &to), TA_OK);
    CHECK_EQ(ta_buffer_write(from, 0, 100, data), TA_OK);
    ta_region regions[] = {{0, 10}, {50, 5}};
    ta_copy copy = {from, to, regions, 2, NULL};
    CHECK_EQ(ta_copy_run(&copy, &copied), TA_OK);
    CHECK_EQ(copied, 15);
    CHECK_EQ(ta_buffer_read(to, 0, 100, back), TA_OK);
    CHECK(back[9] == 9 && back[10] == 0 && back[54] == 54 && back[55] == 0);
    copy.label = "refuse";
    CHECK_EQ(ta_copy_run(&copy, NULL), TA_INVALID_VALUE);
    ta_region other = {90, 10};
    ta_copy copies[] = {{from, to, regions, 1, "first"}, {from, to, &other, 1, NULL}, {from, to, NULL, 0, ""}};
    CHECK_EQ(ta_copy_many(3, copies, &copied), TA_OK);
    CHECK_EQ(copied, 20);
    CHECK_EQ(ta_buffer_read(to, 90, 10, back), TA_OK);
    CHECK(memcmp(back, data + 90, 10) == 0);
    copies[1].source = NULL;
    CHECK_EQ(ta_copy_many(3, copies, &copied), TA_INVALID_BUFFER);
    CHECK_EQ(ta_copy_many(0, NULL, &copied), TA_OK);
    ta_device owner = NULL;
    CHECK_EQ(ta_buffer_device(from, &owner), TA_OK);
    CHECK(owner == device);
    size_t size = 0;
    CHECK_EQ(ta_buffer_bytes(from, &size), TA_OK);
    CHECK_EQ(size, 100);
    uint64_t number = 0x0102030405060708;
    CHECK_EQ(ta_measure(&from, sizeof from, &size), TA_OK);
    CHECK_EQ(size, 100);
    CHECK_EQ(ta_measure(&number, sizeof number, &size), TA_OK);
    CHECK_EQ(size, 36);
    CHECK_EQ(ta_measure(data, 100, &size), TA_OK);
    CHECK_EQ(size, 4950);
    CHECK_EQ(ta_buffer_set(from, 5, 77, 0), TA_OK);
    CHECK_EQ(ta_buffer_set(from, 6, 78, 1), TA_OK);
    CHECK_EQ(ta_buffer_set(from, 100, 78, 1), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_read(from, 5, 2, back), TA_OK);
    CHECK(back[0] == 77 && back[1] == 78);
    CHECK_EQ(ta_buffer_tag_set(from, &owner), TA_OK);
    CHECK(ta_buffer_tag(from) == &owner);
    CHECK(ta_buffer_tag(to) == NULL);
    uint8_t *at = ta_buffer_address(from);
    uint64_t sum = 7;
    size_t from_bytes = 0;
    CHECK_EQ(ta_buffer_bytes(from, &from_bytes), TA_OK);
    CHECK_EQ(ta_buffer_fill(from, 3), TA_OK);
    CHECK_EQ(ta_buffer_sum_at(from, at + 1, 2, &sum), TA_OK);
    CHECK_EQ(sum, 6);
    CHECK_EQ(ta_buffer_sum_at(from, at + 1, from_bytes, &sum), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_sum_at(from, &owner, 1, &sum), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_touch(from, NULL), TA_OK);
    int invalid = TA_INVALID_VALUE;
    CHECK_EQ(ta_buffer_touch(from, &invalid), TA_INVALID_VALUE);
    CHECK_EQ(ta_buffer_destroy(from), TA_OK);
    CHECK_EQ(ta_buffer_destroy(to), TA_OK);
    copies[1].source = from;
    CHECK_EQ(ta_copy_many(3, copies, &copied), TA_INVALID_BUFFER);
}

int main(void) {
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    queries();
    counted();
    numbers();
    structs();
    CHECK_EQ(ta_device_close(device), TA_OK);
    return check_done();
}
