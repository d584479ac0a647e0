/* A guest that runs out of descriptors and threads, before and after it attached. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static int taken[4096], count;

static void take_all(void) {
    struct rlimit limit = {256, 256};
    setrlimit(RLIMIT_NOFILE, &limit);
    while (count < 4096 && (taken[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
}

static void give_back(void) {
    while (count > 0)
        close(taken[--count]);
}

static char right[] = "right";

static void *call(void *unused) {
    (void)unused;
    return ta_add(1, 2) == 3 ? right : NULL;
}

static void *call_from_a_thread(void) {
    pthread_t thread;
    void *result = NULL;
    if (pthread_create(&thread, NULL, call, NULL) == 0)
        pthread_join(thread, &result);
    return result;
}

static int32_t visit(uint32_t index, void *context) {
    (void)context;
    return (int32_t)index;
}

int main(void) {
    ta_device device = NULL;
    take_all();
    CHECK_EQ(ta_device_open("none left", &device), TA_DEVICE_LOST);
    give_back();
    usleep(1100000); /* it is tried again after a second */
    CHECK_EQ(ta_device_open("some left", &device), TA_OK);
    take_all();
    /* An attached session goes on, even if a new thread can have no lane. */
    CHECK_EQ(ta_add(3, 4), 7);
    void *answer = call_from_a_thread();
    CHECK(getenv("AVIARY_TRANSPORT") || answer);
    int64_t sum = ta_each(4, visit, NULL);
    CHECK(sum == 6 || getenv("AVIARY_TRANSPORT"));
    CHECK_EQ(ta_add(5, 6), 11);
    give_back();
    CHECK(call_from_a_thread() != NULL);
    CHECK_EQ(ta_each(4, visit, NULL), 6);
    CHECK_EQ(ta_device_close(device), TA_OK);
    return check_done();
}
