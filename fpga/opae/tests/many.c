/* What programs of OPAE do that one example does not: a thousand small buffers, many threads that open, a buffer that is read after
 * its handle was closed, and a function that OPAE's own samples refer to. */
#include "common.h"

#include <opae/log.h>
#include <pthread.h>
#include <string.h>

#define BUFFERS 1000
#define BYTES 4096
#define THREADS 12
#define ROUNDS 4

static pthread_barrier_t all;
/* Bound before main where the program is linked with -z now. */
void (*volatile printing)(int, const char *, ...) = opae_print;

/* The first and the last thousandth are copied by the accelerator; every buffer keeps its own content. */
static void buffers(fpga_token token)
{
    static unsigned char *places[BUFFERS];
    volatile uint64_t *dsm = NULL;
    uint64_t ids[BUFFERS], dsm_id;
    fpga_handle handle;

    OK(fpgaOpen(token, &handle, 0));
    OK(fpgaPrepareBuffer(handle, BYTES, (void **)&dsm, &dsm_id, 0));
    for (int i = 0; i < BUFFERS; i++) {
        OK(fpgaPrepareBuffer(handle, BYTES, (void **)&places[i], &ids[i], 0));
        memset(places[i], i % 251, BYTES);
    }
    OK(fpgaReset(handle));
    dsm[DONE] = 0;
    start_copy(handle, dsm_id, ids[BUFFERS - 1], ids[0], BYTES / LINE);
    wait_for(dsm);
    for (int i = 0; i < BUFFERS; i++)
        for (int at = 0; at < BYTES; at++)
            CHECK(places[i][at] == (i ? i : BUFFERS - 1) % 251);
    /* One of them is zero again when it is a new one. */
    for (int i = 1; i < BUFFERS; i++)
        OK(fpgaReleaseBuffer(handle, ids[i]));
    OK(fpgaPrepareBuffer(handle, BYTES, (void **)&places[1], &ids[1], 0));
    for (int at = 0; at < BYTES; at++)
        CHECK(places[1][at] == 0);
    memset(places[1], 0x5a, BYTES);
    OK(fpgaClose(handle));
    CHECK(places[0][17] == (BUFFERS - 1) % 251 && places[1][17] == 0x5a);
}

static void *open_one(void *unused)
{
    const fpga_guid guid = NLB;
    fpga_handle handle;
    fpga_token token;

    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&all);
        token = find(guid);
        OK(fpgaOpen(token, &handle, FPGA_OPEN_SHARED));
        pthread_barrier_wait(&all);
        OK(fpgaClose(handle));
        OK(fpgaDestroyToken(&token));
        /* The card notices an end a moment later. */
        usleep(200000);
    }
    return unused;
}

int main(void)
{
    const fpga_guid guid = NLB;
    fpga_token token = find(guid);
    pthread_t threads[THREADS];
    uint32_t pasid;
    fpga_handle handle;

    OK(fpgaOpen(token, &handle, 0));
    EXPECT(fpgaBindSVA(handle, &pasid), FPGA_NOT_SUPPORTED);
    OK(fpgaClose(handle));
    printing(0, "an %s of level %d\n", "error", 0);
    printing(2, "of no interest\n");
    buffers(token);
    OK(fpgaDestroyToken(&token));
    pthread_barrier_init(&all, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(threads + i, NULL, open_one, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%d buffers and %d threads are in order\n", BUFFERS, THREADS);
    return 0;
}
