/* A guest that takes and returns memory at random and checks every answer.
 *   churn BOARD PLACE SEED
 * BOARD is a file shared with the test: what is counted there survives the death of this process. Runs until the
 * board says that it is enough. Ends with
 *   0  every answer was right      1  one was wrong (it says which)
 *   2  it could not attach         3  the session was lost */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "testapi.h"

#define BUFFERS 64
#define LARGEST 8192
#define WORDS 16

/* ON: what is held on each of `names`. */
enum { PID, OPERATIONS, GRANTED, REFUSED, HELD, PARKED, ON };
/* The third is a part of the first, which counts it too; reservations lie on the last. */
enum { ONE, TWO, PART, ACCELERATOR, DEVICES };
/* Of place 0: what the test tells all. */
enum { STOP, PAUSE };

static _Atomic uint64_t *board, *mine;
static ta_device devices[ACCELERATOR];
static ta_buffer buffers[BUFFERS];
static size_t sizes[BUFFERS];
static int homes[BUFFERS];
static uint64_t reserved, held, state, on[DEVICES];

static uint32_t random_number(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void expect(int right, ta_status status, const char *what) {
    if (right)
        return;
    if (status == TA_DEVICE_LOST)
        exit(3);
    printf("wrong: %s answers %d\n", what, (int)status);
    fflush(stdout);
    exit(1);
}

static int granted(ta_status status, const char *what) {
    expect(status == TA_OK || status == TA_OUT_OF_MEMORY, status, what);
    atomic_fetch_add(&mine[status == TA_OK ? GRANTED : REFUSED], 1);
    return status == TA_OK;
}

static void count(int home, uint64_t bytes) {
    held += bytes;
    on[home] += bytes;
    if (home == PART)
        on[ONE] += bytes;
}

static void create(int at) {
    size_t bytes = 1 + random_number(LARGEST);
    ta_buffer buffer = NULL;
    int home = (int)random_number(ACCELERATOR);
    if (!granted(ta_buffer_create(devices[home], bytes, &buffer), "create"))
        return;
    buffers[at] = buffer;
    sizes[at] = bytes;
    homes[at] = home;
    count(home, bytes);
}

static void destroy(int at) {
    ta_status status = ta_buffer_destroy(buffers[at]);
    expect(status == TA_OK, status, "destroy");
    buffers[at] = NULL;
    count(homes[at], -(uint64_t)sizes[at]);
}

static void reserve(void) {
    uint64_t bytes = 1 + random_number(LARGEST);
    if (!granted(ta_reserve(bytes), "reserve"))
        return;
    reserved += bytes;
    count(ACCELERATOR, bytes);
}

static void unreserve(void) {
    uint64_t bytes = 1 + random_number((uint32_t)reserved);
    ta_status status = ta_unreserve(bytes);
    expect(status == TA_OK, status, "unreserve");
    reserved -= bytes;
    count(ACCELERATOR, -bytes);
}

/* More than there is, or more than there are numbers. */
static void too_much(void) {
    ta_buffer buffer = NULL;
    ta_status status = random_number(2) ? ta_buffer_create(devices[PART], SIZE_MAX - random_number(9), &buffer)
                                        : ta_reserve(UINT64_MAX - random_number(9));
    expect(status == TA_OUT_OF_MEMORY, status, "too much");
    atomic_fetch_add(&mine[REFUSED], 1);
}

static void step(void) {
    int at = (int)random_number(BUFFERS);
    uint32_t choice = random_number(100);
    if (choice == 0)
        too_much();
    else if (choice < 20 && !reserved)
        reserve();
    else if (choice < 20)
        random_number(2) ? unreserve() : reserve();
    else if (buffers[at])
        destroy(at);
    else
        create(at);
    atomic_store(&mine[HELD], held);
    for (int i = 0; i < DEVICES; i++)
        atomic_store(&mine[ON + i], on[i]);
    atomic_fetch_add(&mine[OPERATIONS], 1);
}

static void park(void) {
    struct timespec nap = {0, 1000000};
    atomic_store(&mine[PARKED], 1);
    while (atomic_load(&board[PAUSE]) && !atomic_load(&board[STOP]))
        nanosleep(&nap, NULL);
    atomic_store(&mine[PARKED], 0);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int fd = open(argv[1], O_RDWR), place = atoi(argv[2]);
    board = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || board == MAP_FAILED)
        return 2;
    mine = board + (size_t)place * WORDS;
    state = strtoull(argv[3], NULL, 10);
    if (ta_device_open("churn 1", &devices[ONE]) != TA_OK || ta_device_open("churn 2", &devices[TWO]) != TA_OK)
        return 2;
    intptr_t part_of_one[] = {TA_PROPERTY_PARENT, (intptr_t)devices[ONE], 0};
    if (ta_device_create(part_of_one, &devices[PART]) != TA_OK)
        return 2;
    atomic_store(&mine[PID], (uint64_t)getpid());
    while (!atomic_load(&board[STOP])) {
        if (atomic_load(&board[PAUSE]))
            park();
        step();
    }
    return 0;
}
