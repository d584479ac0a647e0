/* This API's part of tests/pointers: objects to call its functions with, and a question that its API server answers. */
#include "testapi.h"

static void addresses_of_the_api(void) { addresses("ta_address"); }

static int setup(void) {
    ta_device device;
    ta_buffer buffer;
    ta_event event;
    ta_marker marker;
    ta_program program;
    ta_entry entry;
    ta_slot slot;
    ta_address address;
    ta_kernel kernel;
    ta_stream stream;
    ta_status error = TA_OK;
    if (ta_device_open("zero", &device) != TA_OK || ta_buffer_create(device, 4096, &buffer) != TA_OK
        || ta_event_create(&event) != TA_OK || ta_marker_create(&marker, 5, 10) != TA_OK
        || ta_program_load(1, &program) != TA_OK || ta_program_entry(program, 0, &entry) != TA_OK
        || ta_slot_take(&slot) != TA_OK || ta_address_reserve(4096, &address) != TA_OK
        || ta_kernel_create(device, "fill", &kernel) != TA_OK)
        return 0;
    stream = ta_stream_create(device, &error);
    if (!stream || error != TA_OK)
        return 0;
    known("ta_device", (uint64_t)device);
    known("ta_buffer", (uint64_t)buffer);
    known("ta_event", (uint64_t)event);
    known("ta_marker", (uint64_t)marker);
    known("ta_program", (uint64_t)program);
    known("ta_entry", (uint64_t)entry);
    known("ta_slot", slot);
    known("ta_address", address);
    known("ta_kernel", (uint64_t)kernel);
    known("ta_stream", (uint64_t)stream);
    return 1;
}

static void each_thread(void) {}

/* Never asynchronous, and answered by the library. */
static int alive(void) { return ta_ticks() != 0 && ta_noop() != TA_DEVICE_LOST; }
