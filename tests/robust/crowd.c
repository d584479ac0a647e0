/* Many threads, that is lanes, at a time. Ends with 3 if the session was lost, 0 if every thread that could call did. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "testapi.h"

static pthread_barrier_t barrier;

static void *call(void *unused) {
    int sum = ta_add(1, 2);
    (void)unused;
    pthread_barrier_wait(&barrier);
    return sum == 3 ? NULL : &barrier;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 60, failed = 0;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    if (!threads || ta_add(1, 2) != 3)
        return 2;
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, call, NULL) != 0)
            return 4;
    for (int i = 0; i < count; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        failed += result != NULL;
    }
    printf("%d of %d threads could not call\n", failed, count);
    return ta_noop() == TA_OK ? 0 : 3;
}
