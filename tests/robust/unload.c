/* Unloads the library while other threads are inside calls, again and again. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static _Atomic int stop;

static void *busy(void *library) {
    int32_t (*add)(int32_t, int32_t) = (int32_t (*)(int32_t, int32_t))dlsym(library, "ta_add");
    ta_status (*work)(uint32_t) = (ta_status(*)(uint32_t))dlsym(library, "ta_work");
    uintptr_t wrong = 0;
    while (!atomic_load(&stop))
        wrong += add(1, 1) != 2 || work(200) != TA_OK;
    return (void *)wrong;
}

int main(void) {
    for (int round = 0; round < 20; round++) {
        pthread_t threads[3];
        uintptr_t wrong = 0;
        void *library = dlopen("libtestapi.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return 2;
        atomic_store(&stop, 0);
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, busy, library);
        usleep(2000);
        if (dlclose(library) != 0)
            return 2;
        usleep(5000);
        atomic_store(&stop, 1);
        for (int i = 0; i < 3; i++) {
            void *result = NULL;
            pthread_join(threads[i], &result);
            wrong += (uintptr_t)result;
        }
        if (round % 5 == 0)
            CHECK_EQ(wrong, 0);
        else if (wrong)
            return 1;
    }
    return check_done();
}
