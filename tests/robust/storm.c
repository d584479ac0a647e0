/* A storm of signals whose handlers call the library, on threads that are in calls. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static _Atomic int handled, wrong_inside;

static void on_alarm(int signal) {
    (void)signal;
    if (ta_add(20, 3) != 23)
        atomic_fetch_add(&wrong_inside, 1);
    atomic_fetch_add(&handled, 1);
}

static void *calls(void *unused) {
    static _Thread_local unsigned char data[30000], back[30000];
    uintptr_t wrong = 0;
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    (void)unused;
    wrong += ta_device_open("storm", &device) != TA_OK;
    wrong += ta_buffer_create(device, sizeof data, &buffer) != TA_OK;
    for (int i = 0; i < 150 || atomic_load(&handled) < 100; i++) {
        memset(data, i, sizeof data);
        ta_noop_async();
        wrong += ta_buffer_write(buffer, 0, sizeof data, data) != TA_OK;
        wrong += ta_buffer_read(buffer, 0, sizeof back, back) != TA_OK;
        wrong += memcmp(data, back, sizeof data) != 0;
        wrong += ta_work(200) != TA_OK;
    }
    wrong += ta_buffer_destroy(buffer) != TA_OK;
    wrong += ta_device_close(device) != TA_OK;
    return (void *)wrong;
}

/* Nearly all of the time the thread is in asynchronous calls, of which a handler's call must not wait for one that is not sent. */
static void posts(void) {
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    atomic_store(&handled, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    while (atomic_load(&handled) < 500)
        ta_noop_async();
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK_EQ(ta_add(1, 1), 2);
    CHECK_EQ(atomic_load(&wrong_inside), 0);
}

/* A handler of the faster timer is interrupted by nobody, but the thread may have no time between two of them. */
static void storm(suseconds_t period) {
    pthread_t threads[2];
    uintptr_t wrong = 0;
    struct itimerval often = {{0, period}, {0, period}}, never = {{0, 0}, {0, 0}};
    atomic_store(&handled, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, calls, NULL);
    for (int i = 0; i < 2; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        wrong += (uintptr_t)result;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK_EQ(wrong, 0);
    CHECK_EQ(atomic_load(&wrong_inside), 0);
    CHECK(atomic_load(&handled) >= 100);
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    CHECK_EQ(ta_add(1, 1), 2);
    sigaction(SIGALRM, &action, NULL);
    posts();
    storm(2000);
    storm(700);
    return check_done();
}
