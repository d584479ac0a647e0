/* Buffers of all kinds, with copies by NLB, and interrupts. */
#include "common.h"

#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096
#define LINES 4
#define ERROR 6

static fpga_handle handle;
static volatile uint64_t *dsm;
static uint64_t dsm_id;

static unsigned char *pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Memory of the program's own: whole pages, whose content stays before and after. */
static void preallocated(void)
{
    unsigned char *from = pages(3 * PAGE), *to = pages(3 * PAGE), *again = from, *shared;
    unsigned char *middle = from + PAGE;
    uint64_t from_id, to_id, id, address;

    OK(fpgaPrepareBuffer(handle, 0, NULL, NULL, FPGA_BUF_PREALLOCATED));
    memset(from, 0x5a, 3 * PAGE);
    memset(to, 0x11, 3 * PAGE);
    OK(fpgaPrepareBuffer(handle, PAGE, (void **)&middle, &from_id, FPGA_BUF_PREALLOCATED | FPGA_BUF_READ_ONLY));
    CHECK(middle == from + PAGE);
    CHECK(from[PAGE] == 0x5a && from[2 * PAGE - 1] == 0x5a);
    OK(fpgaPrepareBuffer(handle, 3 * PAGE, (void **)&to, &to_id, FPGA_BUF_PREALLOCATED));
    memset(from + PAGE, 0x77, LINES * LINE);
    dsm[DONE] = 0;
    start_copy(handle, dsm_id, from_id, to_id, LINES);
    wait_for(dsm);
    OK(fpgaReleaseBuffer(handle, from_id));
    OK(fpgaReleaseBuffer(handle, to_id));
    for (int i = 0; i < 3 * PAGE; i++)
        CHECK(to[i] == (i < LINES * LINE ? 0x77 : 0x11) && from[i] == (i >= PAGE && i < PAGE + LINES * LINE ? 0x77 : 0x5a));
    EXPECT(fpgaGetIOAddress(handle, to_id, &address), FPGA_NOT_FOUND);
    EXPECT(fpgaReleaseBuffer(handle, to_id), FPGA_INVALID_PARAM);

    /* No whole pages, none at all, twice the same, memory of others, memory that is not there. */
    int flags = FPGA_BUF_PREALLOCATED | FPGA_BUF_QUIET;
    EXPECT(fpgaPrepareBuffer(handle, PAGE + 1, (void **)&again, &id, flags), FPGA_INVALID_PARAM);
    EXPECT(fpgaPrepareBuffer(handle, 0, (void **)&again, &id, flags), FPGA_INVALID_PARAM);
    again = from + 1;
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&again, &id, flags), FPGA_INVALID_PARAM);
    again = NULL;
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&again, &id, flags), FPGA_INVALID_PARAM);
    OK(fpgaPrepareBuffer(handle, 2 * PAGE, (void **)&from, &from_id, flags));
    again = from + PAGE;
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&again, &id, flags), FPGA_INVALID_PARAM);
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&shared, &id, flags), FPGA_INVALID_PARAM);
    munmap(shared, PAGE);
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&shared, &id, flags), FPGA_INVALID_PARAM);
    /* A program may unmap its memory first: what lies there then is not touched. */
    munmap(from, 3 * PAGE);
    CHECK(mmap(from, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == from);
    from[0] = 9;
    OK(fpgaReleaseBuffer(handle, from_id));
    CHECK(from[0] == 9);
    munmap(from, PAGE);
    munmap(to, 3 * PAGE);
}

static void allocated(void)
{
    unsigned char *one = NULL, *other = NULL;
    uint64_t one_id, other_id, word, address;

    OK(fpgaPrepareBuffer(handle, 1, (void **)&one, &one_id, 0));
    OK(fpgaPrepareBuffer(handle, 3 << 20, (void **)&other, &other_id, FPGA_BUF_READ_ONLY));
    CHECK(one_id != other_id);
    OK(fpgaGetIOAddress(handle, one_id, &address));
    CHECK(address % PAGE == 0);
    /* The accelerator may not write there: its job fails, and nothing changes. */
    memset(one, 1, LINES * LINE);
    memset(other, 2, LINES * LINE);
    dsm[DONE] = 0;
    start_copy(handle, dsm_id, one_id, other_id, LINES);
    do
        OK(fpgaReadMMIO64(handle, 0, CONTROL, &word));
    while (word != ERROR);
    CHECK(dsm[DONE] == 0 && other[0] == 2 && other[LINES * LINE - 1] == 2);
    OK(fpgaReset(handle));
    start_copy(handle, dsm_id, other_id, one_id, LINES);
    wait_for(dsm);
    CHECK(one[0] == 2 && one[LINES * LINE - 1] == 2);
    OK(fpgaReleaseBuffer(handle, other_id));
    OK(fpgaReleaseBuffer(handle, one_id));

    EXPECT(fpgaPrepareBuffer(handle, 0, (void **)&one, &one_id, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaPrepareBuffer(handle, PAGE, NULL, &one_id, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&one, NULL, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&one, &one_id, 8), FPGA_INVALID_PARAM);
    EXPECT(fpgaPrepareBuffer(NULL, PAGE, (void **)&one, &one_id, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaPrepareBuffer(handle, UINT64_MAX, (void **)&one, &one_id, FPGA_BUF_QUIET), FPGA_NO_MEMORY);
    EXPECT(fpgaPrepareBuffer(handle, (uint64_t)1 << 40, (void **)&one, &one_id, FPGA_BUF_QUIET), FPGA_NO_MEMORY);
    EXPECT(fpgaGetIOAddress(handle, dsm_id, NULL), FPGA_INVALID_PARAM);
    EXPECT(fpgaGetIOAddress(handle, 12345, &address), FPGA_NOT_FOUND);
}

static void interrupts(void)
{
    fpga_event_handle event, gone;
    struct pollfd polled = {.events = POLLIN};
    unsigned char *from = NULL, *to = NULL;
    uint64_t from_id, to_id, times;
    int descriptor;

    /* The job before has written its result, and may raise its interrupt yet. */
    OK(fpgaReset(handle));
    OK(fpgaPrepareBuffer(handle, PAGE, (void **)&from, &from_id, 0));
    OK(fpgaPrepareBuffer(handle, PAGE, (void **)&to, &to_id, 0));
    OK(fpgaCreateEventHandle(&event));
    EXPECT(fpgaGetOSObjectFromEventHandle(event, &descriptor), FPGA_INVALID_PARAM);
    EXPECT(fpgaRegisterEvent(handle, FPGA_EVENT_ERROR, event, 0), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaRegisterEvent(handle, FPGA_EVENT_INTERRUPT, event, 4), FPGA_INVALID_PARAM);
    EXPECT(fpgaRegisterEvent(handle, FPGA_EVENT_INTERRUPT, handle, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaUnregisterEvent(handle, FPGA_EVENT_INTERRUPT, event), FPGA_INVALID_PARAM);
    OK(fpgaRegisterEvent(handle, FPGA_EVENT_INTERRUPT, event, 0));
    OK(fpgaGetOSObjectFromEventHandle(event, &polled.fd));
    for (int round = 0; round < 2; round++) {
        CHECK(poll(&polled, 1, 0) == 0);
        dsm[DONE] = 0;
        start_copy(handle, dsm_id, from_id, to_id, LINES);
        CHECK(poll(&polled, 1, -1) == 1 && polled.revents == POLLIN);
        CHECK(read(polled.fd, &times, sizeof times) == sizeof times && times == 1);
        CHECK(dsm[DONE] & 1);
    }
    OK(fpgaUnregisterEvent(handle, FPGA_EVENT_INTERRUPT, event));
    dsm[DONE] = 0;
    start_copy(handle, dsm_id, from_id, to_id, LINES);
    wait_for(dsm);
    CHECK(poll(&polled, 1, 0) == 0);
    OK(fpgaRegisterEvent(handle, FPGA_EVENT_INTERRUPT, event, 0));
    OK(fpgaGetOSObjectFromEventHandle(event, &descriptor));
    CHECK(descriptor == polled.fd);
    gone = event;
    OK(fpgaDestroyEventHandle(&event));
    EXPECT(fpgaDestroyEventHandle(&gone), FPGA_INVALID_PARAM);
    OK(fpgaReleaseBuffer(handle, from_id));
    OK(fpgaReleaseBuffer(handle, to_id));
}

static void refused(void)
{
    unsigned char *memory = pages(PAGE);
    fpga_event_handle event;
    uint64_t id;

    EXPECT(fpgaPrepareBuffer(handle, 0, NULL, NULL, FPGA_BUF_PREALLOCATED), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaPrepareBuffer(handle, PAGE, (void **)&memory, &id, FPGA_BUF_PREALLOCATED), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaCreateEventHandle(&event), FPGA_NOT_SUPPORTED);
    munmap(memory, PAGE);
}

/* With an argument: through an API server. */
int main(int argc, char **argv)
{
    const fpga_guid guid = NLB;
    fpga_token token = find(guid);

    (void)argv;
    OK(fpgaOpen(token, &handle, 0));
    OK(fpgaPrepareBuffer(handle, PAGE, (void **)&dsm, &dsm_id, 0));
    /* Through an API server there are neither. */
    if (argc == 1)
        preallocated();
    else
        refused();
    allocated();
    if (argc == 1)
        interrupts();
    /* A handle that is closed lets go of the buffers that it has. */
    OK(fpgaClose(handle));
    OK(fpgaDestroyToken(&token));
    puts("memory is in order");
    return 0;
}
