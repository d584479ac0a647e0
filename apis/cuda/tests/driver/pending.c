/* Functions that a stream is still to call on the host when the API server ends. Prints `holding` while the first one runs, which
 * returns when a line comes, and what has become of the others. */
#include "common.h"

#include <pthread.h>
#include <unistd.h>

enum { CALLBACKS = 3 };

struct seen {
    CUstream stream;
    CUresult status;
    int number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct seen seen[CALLBACKS + 1];
static int calls, functions;

static void hold(void *data)
{
    char line[8];

    (void)data;
    puts("holding");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(2);
}

static void count(void *data)
{
    (void)data;
    __atomic_add_fetch(&functions, 1, __ATOMIC_SEQ_CST);
}

static void CUDA_CB told(CUstream stream, CUresult status, void *data)
{
    pthread_mutex_lock(&lock);
    if (calls <= CALLBACKS)
        seen[calls++] = (struct seen){stream, status, (int)(intptr_t)data};
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

int main(void)
{
    CUstream stream;

    start();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf("a lost call: %d\n", CUDA_ERROR_DEVICE_UNAVAILABLE);
    MUST(cuLaunchHostFunc(stream, hold, NULL));
    MUST(cuLaunchHostFunc(stream, count, NULL));
    for (int i = 0; i < CALLBACKS; i++)
        MUST(cuStreamAddCallback(stream, told, (void *)(intptr_t)i, 0));
    pthread_mutex_lock(&lock);
    while (calls < CALLBACKS)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < CALLBACKS; i++)
        printf("callback %d: %d, %s\n", seen[i].number, seen[i].status, seen[i].stream == stream ? "its stream" : "another stream");
    printf("functions: %d\n", functions);
    printf("registered afterwards: %d\n", cuStreamAddCallback(stream, told, NULL, 0));
    printf("calls: %d\n", calls);
    puts("ok pending");
    return 0;
}
