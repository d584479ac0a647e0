/* Buffers that are used through the kernel on which they were set, and that end meanwhile: only remotely, as the library
 * itself follows the addresses.
 * referred ROUNDS */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"
#include "testapi.h"

enum { BYTES = 4096, RUNNERS = 3 };

static ta_device device;
static _Atomic(ta_kernel) shared;
static atomic_int stop, wrong;

static ta_buffer new_buffer(void) {
    ta_buffer buffer = NULL;
    if (ta_buffer_create(device, BYTES, &buffer) != TA_OK)
        wrong = stop = 1;
    return buffer;
}

static ta_kernel new_kernel(void) {
    ta_kernel kernel = NULL;
    CHECK_EQ(ta_kernel_create(device, "fill", &kernel), TA_OK);
    return kernel;
}

static void one_thread(void) {
    ta_kernel kernel = new_kernel(), copy = NULL, other = NULL;
    ta_buffer first = new_buffer(), second = new_buffer();
    unsigned char byte = 0;
    CHECK_EQ(ta_kernel_run(kernel, 1), TA_OK);
    CHECK_EQ(ta_kernel_set(kernel, 0, first), TA_OK);
    CHECK_EQ(ta_kernel_set(kernel, 1, second), TA_OK);
    CHECK_EQ(ta_kernel_run(kernel, 7), TA_OK);
    CHECK_EQ(ta_buffer_read(first, BYTES - 1, 1, &byte), TA_OK);
    CHECK_EQ(byte, 7);
    CHECK_EQ(ta_kernel_copy(kernel, &copy), TA_OK);
    CHECK_EQ(ta_kernel_copy(copy, &other), TA_OK);
    CHECK_EQ(ta_buffer_destroy(first), TA_OK);
    CHECK_EQ(ta_kernel_run(kernel, 8), TA_INVALID_BUFFER);
    CHECK_EQ(ta_kernel_run(copy, 8), TA_INVALID_BUFFER);
    CHECK_EQ(ta_kernel_run(other, 8), TA_INVALID_BUFFER);
    CHECK_EQ(ta_kernel_set(kernel, 2, second), TA_INVALID_VALUE);
    CHECK_EQ(ta_kernel_set(kernel, 0, first), TA_INVALID_BUFFER);
    CHECK_EQ(ta_kernel_run(kernel, 8), TA_INVALID_BUFFER);
    uint32_t arguments = 0;
    CHECK_EQ(ta_kernel_argument_count(kernel, &arguments), TA_OK);
    CHECK_EQ(ta_kernel_set(kernel, 0, second), TA_OK);
    CHECK_EQ(ta_kernel_run(kernel, 9), TA_OK);
    CHECK_EQ(ta_kernel_set(copy, 0, NULL), TA_OK);
    CHECK_EQ(ta_kernel_run(copy, 10), TA_OK);
    CHECK_EQ(ta_kernel_destroy(other), TA_OK);
    CHECK_EQ(ta_buffer_destroy(second), TA_OK);
    CHECK_EQ(ta_kernel_run(kernel, 11), TA_INVALID_BUFFER);
    CHECK_EQ(ta_kernel_set(copy, 1, NULL), TA_OK);
    CHECK_EQ(ta_kernel_run(copy, 12), TA_OK);
    CHECK_EQ(ta_kernel_destroy(kernel), TA_OK);
    CHECK_EQ(ta_kernel_destroy(copy), TA_OK);
}

static void *run(void *unused) {
    (void)unused;
    while (!stop) {
        ta_status status = ta_kernel_run(shared, 1);
        if (status != TA_OK && status != TA_INVALID_BUFFER)
            wrong = stop = 1;
    }
    return NULL;
}

/* A thread replaces and destroys what others use. */
static void many_threads(int rounds) {
    pthread_t threads[RUNNERS];
    shared = new_kernel();
    for (int i = 0; i < RUNNERS; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int round = 0; round < rounds && !stop; round++) {
        ta_buffer buffer = new_buffer();
        if (ta_kernel_set(shared, round % 2, buffer) != TA_OK || ta_buffer_destroy(buffer) != TA_OK)
            wrong = stop = 1;
    }
    stop = 1;
    for (int i = 0; i < RUNNERS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(wrong, 0);
}

int main(int argc, char **argv) {
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    one_thread();
    many_threads(argc > 1 ? atoi(argv[1]) : 2000);
    return check_done();
}
