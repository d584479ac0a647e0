/* A thread that is cancelled while it waits for an event: deferred, and at any instruction. What it does on its way out may call,
 * and the others go on. */
#include "common.h"
#include <pthread.h>
#include <sys/wait.h>

static struct device d;
static cl_event never;
static volatile int waits;

static void released(void *event) {
    /* Nothing of the runtime's: natively the cancelled call may have left its locks behind. */
    (void)event;
    puts("cleanup");
}

static void *wait_forever(void *type) {
    int old;
    pthread_setcanceltype((int)(intptr_t)type, &old);
    pthread_cleanup_push(released, never);
    waits = 1;
    clWaitForEvents(1, &never);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void) {
    /* Natively the runtime may not be used after the first one, so each has a process of its own. */
    for (int i = 0; i < 2; i++) {
        fflush(stdout);
        if (fork() == 0) {
            setvbuf(stdout, NULL, _IONBF, 0);
            d = open_device(0);
            cl_int status;
            never = clCreateUserEvent(d.context, &status);
            MUST(status);
            pthread_t thread;
            void *result = NULL;
            int type = i == 0 ? PTHREAD_CANCEL_DEFERRED : PTHREAD_CANCEL_ASYNCHRONOUS;
            pthread_create(&thread, NULL, wait_forever, (void *)(intptr_t)type);
            while (!waits)
                usleep(1000);
            usleep(200000);
            pthread_cancel(thread);
            pthread_join(thread, &result);
            puts(result == PTHREAD_CANCELED ? "cancelled" : "returned");
            _exit(0);
        }
        int status = 0;
        while (wait(&status) < 0)
            ;
        printf("status %d\n", status);
    }
    return 0;
}
