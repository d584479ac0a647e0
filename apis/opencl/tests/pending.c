/* Callbacks that are to come when the API server ends: of an event, of a memory object that is never released. Prints `holding`,
 * waits for a line, then for the callbacks, and prints what they were given. */
#include "common.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int calls;
static cl_event event;
static cl_mem memory;

static void called(void) {
    calls++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void CL_CALLBACK completed(cl_event of, cl_int status, void *context) {
    pthread_mutex_lock(&lock);
    printf("%s: event %d, status %d\n", (const char *)context, of == event, status);
    called();
}

static void CL_CALLBACK destroyed(cl_mem of, void *context) {
    pthread_mutex_lock(&lock);
    printf("%s: memory %d\n", (const char *)context, of == memory);
    called();
}

int main(void) {
    char line[8];
    cl_int status;
    struct device d = open_device(0);
    event = clCreateUserEvent(d.context, &status);
    MUST(status);
    memory = buffer_of(&d, 0, 64, NULL);
    MUST(clSetEventCallback(event, CL_COMPLETE, completed, "first"));
    MUST(clSetMemObjectDestructorCallback(memory, destroyed, "second"));
    MUST(clSetEventCallback(event, CL_COMPLETE, completed, "third"));
    puts("holding");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 2;
    pthread_mutex_lock(&lock);
    while (calls < 3)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    SHOW(clSetEventCallback(event, CL_COMPLETE, completed, "late"));
    printf("calls: %d\n", calls);
    return 0;
}
