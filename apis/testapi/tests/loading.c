/* The library is loaded by hand, used, unloaded and loaded again; called from ending threads and at exit. */
#include <dlfcn.h>
#include <pthread.h>

#include "check.h"
#include "testapi.h"

static int32_t (*add)(int32_t, int32_t);

static void *load(int times) {
    void *library = dlopen("libtestapi.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    for (int i = 0; library && i < times; i++) {
        add = (int32_t (*)(int32_t, int32_t))dlsym(library, "ta_add");
        CHECK_EQ(add(i, 1), i + 1);
    }
    return library;
}

static void at_thread_end(void *value) {
    (void)value;
    add(1, 1);
}

static void *thread_with_key(void *argument) {
    pthread_setspecific(*(pthread_key_t *)argument, argument);
    return (void *)(intptr_t)add(2, 2);
}

static void at_exit(void) {
    printf("%s at exit\n", add(20, 22) == 42 ? "ok  " : "FAIL");
    fflush(stdout);
}

int main(void) {
    for (int i = 0; i < 3; i++) {
        void *library = load(2);
        if (library)
            CHECK_EQ(dlclose(library), 0);
    }
    load(1);
    pthread_key_t key;
    pthread_t thread;
    void *result = NULL;
    CHECK_EQ(pthread_key_create(&key, at_thread_end), 0);
    CHECK_EQ(pthread_create(&thread, NULL, thread_with_key, &key), 0);
    pthread_join(thread, &result);
    CHECK_EQ((intptr_t)result, 4);
    atexit(at_exit);
    return check_done();
}
