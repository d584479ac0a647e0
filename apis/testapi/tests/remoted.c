/* Behaviour that only a remoted run shows. Not run natively.
 * remoted            deferred errors, remembered answers, the launch environment, posted callbacks
 * remoted sync       the same under AVIARY_SYNC=1: errors come at once */
#include <unistd.h>

#include "check.h"
#include "testapi.h"

/* Runs until the library's thread has returned from its callback, this one: it does not wait for the application. */
static void wait_for_the_return(ta_event event, ta_status status, void *context) {
    (void)status;
    while (ta_event_posts() == 0)
        usleep(1000);
    /* The event is there all the same: the application has released it, and the library, too. */
    uint64_t sum = 0;
    CHECK_EQ(ta_events_sum(1, &event, &sum), TA_OK);
    CHECK_EQ(sum, 7);
    *(volatile int *)context = 1;
}

static void posted(void) {
    volatile int called = 0;
    ta_event event = NULL;
    uint32_t references = 0;
    CHECK_EQ(ta_event_create(&event), TA_OK);
    CHECK_EQ(ta_event_signal(event, 7), TA_OK);
    CHECK_EQ(ta_event_post(event, 5, wait_for_the_return, (void *)&called), TA_OK);
    CHECK_EQ(ta_event_release(event), TA_OK);
    while (!called)
        usleep(1000);
    /* The hold ends when the callback has run. */
    while (ta_event_references(event, &references) == TA_OK)
        usleep(1000);
    CHECK_EQ(ta_event_references(event, &references), TA_INVALID_EVENT);
}

/* An answer that the specification does not know has the API server's addresses: it is not told, however much room there is for it. */
static void untold(ta_device device) {
    static char room[1 << 20];
    void *words[8];
    size_t needed = 0;
    CHECK_EQ(ta_device_query(device, TA_DEVICE_MOTTOS, 0, NULL, &needed), TA_OK);
    CHECK_EQ(needed, 2 * sizeof(char *));
    memset(words, 0x11, sizeof words);
    CHECK_EQ(ta_device_query(device, TA_DEVICE_MOTTOS, sizeof words, words, &needed), TA_UNSUPPORTED);
    for (size_t i = 0; i < sizeof words; i++)
        CHECK_EQ(((char *)words)[i], 0x11);
    CHECK_EQ(ta_device_query(device, TA_DEVICE_MOTTOS, sizeof room, room, &needed), TA_UNSUPPORTED);
    for (size_t i = 0; i < sizeof room; i++)
        CHECK_EQ(room[i], 0);
    CHECK_EQ(ta_device_query(device, TA_DEVICE_NAME, sizeof room, room, &needed), TA_OK);
    CHECK(strcmp(room, "zero") == 0);
}

/* What is asked of one buffer holds for others of its device, until the device ends. */
static void like(ta_device device) {
    ta_device other;
    ta_buffer buffers[3];
    uint32_t units[3] = {0};
    CHECK_EQ(ta_device_open("zero", &other), TA_OK);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ta_buffer_create(i < 2 ? device : other, 8, &buffers[i]), TA_OK);
    uint64_t runs = ta_device_units_runs();
    for (int i = 0; i < 9; i++)
        CHECK_EQ(ta_buffer_units(buffers[i % 3], &units[i % 3]), TA_OK);
    CHECK_EQ(units[0] == 1 && units[1] == 1 && units[2] == 1, 1);
    CHECK_EQ(ta_device_units_runs() - runs, 2);
    CHECK_EQ(ta_buffer_units(NULL, &units[0]), TA_INVALID_BUFFER);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(ta_buffer_destroy(buffers[i]), TA_OK);
    CHECK_EQ(ta_device_close(other), TA_OK);
}

int main(int argc, char **argv) {
    int sync = argc > 1 && strcmp(argv[1], "sync") == 0;
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    uint32_t units = 0;

    CHECK_EQ(ta_process() != 0, 1);
    CHECK_EQ(ta_fail_async(-55), sync ? -55 : TA_OK);
    CHECK_EQ(ta_noop(), sync ? TA_OK : -55);
    CHECK_EQ(ta_noop(), TA_OK);
    ta_fail_async(-56);
    ta_fail_async(-57);
    ta_noop_async();
    CHECK_EQ(ta_noop(), sync ? TA_OK : -56); /* the first stays */
    CHECK_EQ(ta_noop(), TA_OK);

    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    uint64_t runs = ta_device_units_runs();
    for (int i = 0; i < 10; i++)
        CHECK_EQ(ta_device_units(device, &units), TA_OK);
    CHECK_EQ(units, 1);
    CHECK_EQ(ta_device_units_runs() - runs, 1);
    runs = ta_device_units_runs();
    CHECK_EQ(ta_device_units(NULL, &units), TA_INVALID_DEVICE);
    CHECK_EQ(ta_device_units(NULL, &units), TA_INVALID_DEVICE);

    like(device);
    untold(device);

    /* A handle that was valid a moment ago, in an asynchronous call. */
    CHECK_EQ(ta_buffer_create(device, 8, &buffer), TA_OK);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);

    posted();

    const char *library = getenv("TESTAPI_LIBRARY"), *config = getenv("TESTAPI_CONFIG");
    CHECK(library && strstr(library, "libtestapi.so.1"));
    FILE *file = config ? fopen(config, "r") : NULL;
    char line[1024] = "";
    CHECK(file && fgets(line, sizeof line, file));
    CHECK(library && strstr(line, library));
    if (file)
        fclose(file);
    return check_done();
}
