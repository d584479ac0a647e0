/* Helper of the tests about death.
 * hold SECONDS       opens a device, prints its own and the library's process, then calls until it is
 *                    lost (exit 3, prints how long the failing call took) or the time is over (exit 0)
 * hold idle SECONDS  the same, but sleeps instead of calling; then makes one call
 * hold told SECONDS  the same, but makes one call for each line of its standard input, and prints a line after it
 * hold placed SECONDS  as "told"; each call also asks where its buffer is, which must stay what it was
 * hold relayed SECONDS  as "told"; each call is made by a thread that stays until the next line. Then it makes a last call, for
 *                    which nobody waits, and ends before another thread begins */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static sem_t has_called, may_end;

static void *call_and_stay(void *status) {
    *(ta_status *)status = ta_noop();
    sem_post(&has_called);
    sem_wait(&may_end);
    ta_noop_async();
    return NULL;
}

/* Makes a call on a thread of its own, after the end of the last one. */
static ta_status relay(void) {
    static pthread_t thread;
    static int begun;
    static ta_status status;
    if (begun++) {
        sem_post(&may_end);
        pthread_join(thread, NULL);
    } else {
        sem_init(&has_called, 0, 0);
        sem_init(&may_end, 0, 0);
    }
    status = TA_DEVICE_LOST;
    if (pthread_create(&thread, NULL, call_and_stay, &status) == 0)
        sem_wait(&has_called);
    return status;
}

int main(int argc, char **argv) {
    int relayed = argc > 2 && strcmp(argv[1], "relayed") == 0;
    int idle = argc > 2 && strcmp(argv[1], "idle") == 0, placed = argc > 2 && strcmp(argv[1], "placed") == 0;
    int told = placed || relayed || (argc > 2 && strcmp(argv[1], "told") == 0);
    char line[16];
    double seconds = atof(argv[argc - 1]), start = now();
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    if (ta_device_open("held", &device) != TA_OK || ta_buffer_create(device, 1 << 20, &buffer) != TA_OK)
        return 2;
    /* Objects that nobody waited for; every fourth was never made. */
    ta_marker marker = NULL;
    for (unsigned i = 0; i < 1000; i++)
        ta_marker_create(&marker, i % 4, 10);
    ta_noop();
    uint64_t place = placed ? ta_buffer_place(buffer) : 0;
    printf("holding %d %d\n", (int)getpid(), ta_process());
    fflush(stdout);
    if (idle)
        usleep((useconds_t)(seconds * 1e6));
    do {
        if (told && fgets(line, sizeof line, stdin) == NULL)
            return 0;
        double called = now();
        ta_status status = relayed ? relay() : idle ? TA_OK : ta_marker_create(&marker, 1, 10);
        if (status == TA_OK && !relayed)
            status = ta_noop();
        if (status == TA_OK && !idle && !relayed)
            ta_marker_destroy_async(marker);
        if (status != TA_OK) {
            double failed = now();
            /* Everything afterwards fails too, at once, and touches nothing. */
            ta_device other = (ta_device)7;
            ta_status after = ta_device_open("again", &other);
            printf("lost %d %d %.3f\n", status, after, failed - called);
            return 3;
        }
        if (told)
            printf(placed && ta_buffer_place(buffer) != place ? "displaced\n" : "called\n"), fflush(stdout);
    } while (now() - start < seconds);
    return 0;
}
