#define _GNU_SOURCE
/* A program that goes on in the background: it closes all descriptors after its first calls, opens files under their numbers, and
 * computes on, in threads that are new and with callbacks. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

static struct device d;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ran = PTHREAD_COND_INITIALIZER;
static int callbacks;

static void CL_CALLBACK note(cl_event event, cl_int status, void *data) {
    (void)event;
    (void)data;
    pthread_mutex_lock(&lock);
    callbacks += status == CL_COMPLETE;
    pthread_cond_signal(&ran);
    pthread_mutex_unlock(&lock);
}

static void *compute(void *data) {
    int value = -1, pattern = *(int *)data;
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, 4096, NULL);
    MUST(clEnqueueFillBuffer(d.queue, buffer, &pattern, 4, 0, 4096, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 400, 4, &value, 0, NULL, NULL));
    MUST(clReleaseMemObject(buffer));
    printf("computed %d\n", value);
    return NULL;
}

static void await_callback(int count) {
    cl_event event;
    MUST(clEnqueueMarkerWithWaitList(d.queue, 0, NULL, &event));
    MUST(clSetEventCallback(event, CL_COMPLETE, note, NULL));
    MUST(clFlush(d.queue));
    pthread_mutex_lock(&lock);
    while (callbacks < count)
        pthread_cond_wait(&ran, &lock);
    pthread_mutex_unlock(&lock);
    MUST(clReleaseEvent(event));
    printf("callbacks %d\n", count);
}

int main(int count, char **arguments) {
    int first = 1, second = 2, pair[2];
    d = open_device(0);
    /* One that asks before and one that asks after. */
    if (count > 1 && arguments[1][0] == 'b')
        await_callback(1);
    compute(&first);
    if (close_range(3, ~0U, 0) != 0)
        return 2;
    /* Files that are not the library's to write to. */
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || dup2(pair[0], 1024) < 0 || dup2(pair[0], 1025) < 0)
        return 2;
    compute(&second);
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        pthread_create(&thread, NULL, compute, &(int){10 + i});
        pthread_join(thread, NULL);
    }
    await_callback(callbacks + 1);
    char byte;
    printf("others' bytes %d\n", (int)recv(pair[1], &byte, 1, MSG_DONTWAIT));
    close_device(&d);
    return 0;
}
