/* The functions of libaviary-fpga but for memory. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The register that starts a job. */
#define CONTROL 0x18
/* Milliseconds after which a thread that waits for the end of a job looks at it, although nothing has told it. */
#define WAIT_MS 1000
/* The same where nothing can tell it. */
#define LOOK_MS 50

int fpga_ask(aviary_fpga *card, struct request request, int descriptor, struct reply *reply)
{
    struct reply ignored;

    if (card->function)
        return fpga_function_ask(card->function, &request, reply ? reply : &ignored);
    return fpga_exchange(card->socket, request, descriptor, reply ? reply : &ignored, NULL);
}

int fpga_ask_locked(aviary_fpga *card, struct request request, struct reply *reply)
{
    int error;

    pthread_mutex_lock(&card->lock);
    error = fpga_ask(card, request, -1, reply);
    pthread_mutex_unlock(&card->lock);
    return error;
}

static char *aligned(char *address)
{
    return (char *)(((uintptr_t)address + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
}

/* Reserves the region and tells the card where it is and where the saved state goes: into its first block. */
static int set_up(aviary_fpga *card, size_t state_bytes, size_t slice_bytes)
{
    void *reserved, *state;
    int error;

    card->region_bytes = slice_bytes;
    card->reserved_bytes = slice_bytes + HUGE_PAGE;
    reserved = mmap(NULL, card->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return -errno;
    card->reserved = reserved;
    card->region = aligned(reserved);
    error = fpga_ask_locked(card, (struct request){BASE, 0, {(uintptr_t)card->region}}, NULL);
    if (error)
        return error;
    state = aviary_fpga_malloc(card, state_bytes ? state_bytes : 1);
    if (!state)
        return -errno;
    return fpga_ask_locked(card, (struct request){STATE, 0, {(uintptr_t)state}}, NULL);
}

/* Asks for one port after the other until there are no more, which is ESRCH. */
static int list_ports(int socket, struct aviary_fpga_port *ports, unsigned room, unsigned *count)
{
    int error = 0;

    for (*count = 0; !error; *count += !error) {
        struct reply reply;

        error = fpga_exchange(socket, (struct request){PORT, VERSION, {*count}}, -1, &reply, NULL);
        if (!error && *count < room)
            memcpy(&ports[*count], reply.words, sizeof *ports);
    }
    return error;
}

EXPORTED int aviary_fpga_list(struct aviary_fpga_port *ports, unsigned room, unsigned *count)
{
    /* A connection that only looks counts as a session as long as it is there: one at a time. */
    static pthread_mutex_t one_looks = PTHREAD_MUTEX_INITIALIZER;
    int socket, error;

    if (!count || (room && !ports))
        return -EINVAL;
    *count = 0;
    pthread_mutex_lock(&one_looks);
    if (fpga_uses_functions()) {
        error = fpga_function_list(ports, room, count);
        pthread_mutex_unlock(&one_looks);
        return error;
    }
    socket = fpga_connect();
    error = socket < 0 ? socket : list_ports(socket, ports, room, count);
    if (socket >= 0)
        fpga_end_connection(socket);
    pthread_mutex_unlock(&one_looks);
    return error == -ESRCH ? 0 : error;
}

/* Finds an accelerator of this type: in the virtual machine, or at the card's socket. The reply is that of HELLO. */
static int greet(aviary_fpga *card, struct request hello, struct reply *reply)
{
    if (fpga_uses_functions())
        return fpga_function_open(hello.words, &card->function, reply);
    card->socket = fpga_connect();
    return card->socket < 0 ? card->socket : fpga_ask_locked(card, hello, reply);
}

EXPORTED int aviary_fpga_connect(const char *guid, aviary_fpga **accelerator)
{
    aviary_fpga *card;
    struct request hello = {HELLO, VERSION, {0}};
    struct reply reply;
    int error;

    if (!guid || !accelerator || !fpga_parse_guid(guid, hello.words))
        return -EINVAL;
    *accelerator = NULL;
    card = calloc(1, sizeof *card);
    if (!card)
        return -ENOMEM;
    pthread_mutex_init(&card->lock, NULL);
    card->file = card->socket = -1;
    card->end = UNASKED;
    error = greet(card, hello, &reply);
    if (!error)
        error = set_up(card, reply.words[1], reply.words[2]);
    if (error) {
        aviary_fpga_disconnect(card);
        return error;
    }
    *accelerator = card;
    return 0;
}

/* With the lock: nothing tells the ends of jobs any more. */
static void forget_end(aviary_fpga *card)
{
    if (card->end >= 0)
        close(card->end);
    card->end = UNTOLD;
}

/* Leaves the card; the region is still there. */
static void leave(aviary_fpga *card)
{
    /* The card ends the job before it lets go of the memory, which stays mapped there until then. */
    if (card->socket >= 0)
        close(card->socket);
    if (card->function)
        fpga_function_close(card->function);
    forget_end(card);
}

static void drop(aviary_fpga *card)
{
    fpga_drop_blocks(card);
    if (card->file >= 0)
        close(card->file);
    pthread_mutex_destroy(&card->lock);
    free(card);
}

EXPORTED void aviary_fpga_disconnect(aviary_fpga *card)
{
    if (!card)
        return;
    leave(card);
    if (card->reserved)
        munmap(card->reserved, card->reserved_bytes);
    drop(card);
}

EXPORTED void aviary_fpga_detach(aviary_fpga *card)
{
    if (!card)
        return;
    leave(card);
    fpga_return_gaps(card);
    drop(card);
}

EXPORTED int aviary_fpga_reset(aviary_fpga *card)
{
    return fpga_ask_locked(card, (struct request){RESET, 0, {0}}, NULL);
}

static int read_bytes(aviary_fpga *card, uint32_t offset, uint32_t bytes, uint64_t *value)
{
    struct reply reply = {0};
    int error = fpga_ask_locked(card, (struct request){READ, bytes, {offset}}, &reply);

    *value = reply.words[0];
    return error;
}

EXPORTED int aviary_fpga_read(aviary_fpga *card, uint32_t offset, uint64_t *value)
{
    return read_bytes(card, offset, 8, value);
}

EXPORTED int aviary_fpga_read32(aviary_fpga *card, uint32_t offset, uint32_t *value)
{
    uint64_t word;
    int error = read_bytes(card, offset, 4, &word);

    *value = (uint32_t)word;
    return error;
}

EXPORTED int aviary_fpga_write(aviary_fpga *card, uint32_t offset, uint64_t value)
{
    return fpga_ask_locked(card, (struct request){WRITE, 8, {offset, value}}, NULL);
}

EXPORTED int aviary_fpga_write32(aviary_fpga *card, uint32_t offset, uint32_t value)
{
    return fpga_ask_locked(card, (struct request){WRITE, 4, {offset, value}}, NULL);
}

EXPORTED volatile void *aviary_fpga_page(aviary_fpga *card)
{
    return card->function ? fpga_function_page(card->function) : NULL;
}

EXPORTED int aviary_fpga_start(aviary_fpga *card)
{
    return aviary_fpga_write(card, CONTROL, 1);
}

static int64_t now_ms(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * (int64_t)1000 + time.tv_nsec / 1000000;
}

static int phase_of(aviary_fpga *card, uint64_t *phase)
{
    struct reply reply;
    int error;

    if (card->function) {
        pthread_mutex_lock(&card->lock);
        error = fpga_function_phase(card->function, phase);
        pthread_mutex_unlock(&card->lock);
        return error;
    }
    error = fpga_ask_locked(card, (struct request){INFO, 0, {0}}, &reply);
    *phase = reply.words[0];
    return error;
}

/* Has the ends of jobs told, and takes what was told before. True: there was something new, and the job may have ended since. */
static int expect_end(aviary_fpga *card)
{
    struct pollfd polled = {.events = POLLIN};
    struct reply reply;
    uint64_t count;
    int news = 0;

    pthread_mutex_lock(&card->lock);
    if (card->end == UNASKED) {
        int error = card->function ? fpga_function_event(card->function, 0, &card->end)
                                   : fpga_exchange(card->socket, (struct request){INTERRUPT, 0, {0}}, -1, &reply, &card->end);

        if (error || card->end < 0)
            card->end = UNTOLD;
        news = 1;
    }
    polled.fd = card->end;
    if (card->end >= 0 && poll(&polled, 1, 0) == 1) {
        /* Whoever sends anything else, or nothing more, is no card of ours. */
        if (read(card->end, &count, sizeof count) != sizeof count)
            forget_end(card);
        news = 1;
    }
    pthread_mutex_unlock(&card->lock);
    return news;
}

/* Waits until the end of a job is told, the card has ended, or so many milliseconds. True: in vain, for as long as one has to. */
static int await_end(aviary_fpga *card, int64_t most)
{
    struct pollfd polled[2] = {{.events = POLLIN}, {.fd = card->socket}};
    int64_t wait, found;

    pthread_mutex_lock(&card->lock);
    /* Another thread may ask for interrupts of the program's own meanwhile, which closes it. */
    polled[0].fd = card->end >= 0 ? fcntl(card->end, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&card->lock);
    wait = polled[0].fd >= 0 ? WAIT_MS : LOOK_MS;
    found = poll(polled, 2, (int)(wait < most ? wait : most));
    if (polled[0].fd >= 0)
        close(polled[0].fd);
    return found == 0 && polled[0].fd >= 0 && wait <= most;
}

EXPORTED int aviary_fpga_wait(aviary_fpga *card, int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    int in_vain = 0, is_ready = 0;

    for (;;) {
        uint64_t phase;
        int64_t left = timeout_ms < 0 ? WAIT_MS : end - now_ms();
        int error = phase_of(card, &phase);

        if (error)
            return error;
        if (phase != AVIARY_FPGA_QUEUED && phase != AVIARY_FPGA_RUNNING) {
            /* It has ended, and nobody was told: interrupts do not come. */
            if (in_vain) {
                pthread_mutex_lock(&card->lock);
                forget_end(card);
                pthread_mutex_unlock(&card->lock);
            }
            return phase == AVIARY_FPGA_FAILED ? -EIO : 0;
        }
        if (left <= 0)
            return -ETIMEDOUT;
        if (!is_ready && expect_end(card)) {
            is_ready = 1;
            continue;
        }
        in_vain = await_end(card, left);
        is_ready = 0;
    }
}

EXPORTED int aviary_fpga_event(aviary_fpga *card, unsigned vector, int *descriptor)
{
    struct reply reply;
    int error;

    pthread_mutex_lock(&card->lock);
    /* From now on the program is told. */
    if (vector == 0)
        forget_end(card);
    if (card->function)
        error = fpga_function_event(card->function, vector, descriptor);
    else
        error = fpga_exchange(card->socket, (struct request){INTERRUPT, vector, {0}}, -1, &reply, descriptor);
    pthread_mutex_unlock(&card->lock);
    /* Only a card that is not ours answers without one. */
    return !error && *descriptor < 0 ? -EPROTO : error;
}

EXPORTED int aviary_fpga_status(aviary_fpga *card, struct aviary_fpga_status *status)
{
    struct reply reply;
    int error = fpga_ask_locked(card, (struct request){INFO, 0, {0}}, &reply);

    if (error)
        return error;
    *status = (struct aviary_fpga_status){0};
    memcpy(status, reply.words, sizeof reply.words);
    if (status->phase != AVIARY_FPGA_FAILED)
        return 0;
    error = fpga_ask_locked(card, (struct request){FAULT, 0, {0}}, &reply);
    if (!error)
        memcpy(&status->fault, reply.words, 4 * sizeof reply.words[0]);
    return error;
}

/* What a fault is, by enum aviary_fpga_fault. */
static const char *const FAULTS[] = {
    [AVIARY_FPGA_NOT_MAPPED] = "no memory is mapped there",
    [AVIARY_FPGA_READ_ONLY_MEMORY] = "the memory there is mapped to be read only",
    [AVIARY_FPGA_BELOW] = "the address is below the program's 64 GB",
    [AVIARY_FPGA_ABOVE] = "the address is above the program's 64 GB",
    [AVIARY_FPGA_SHAPE] = "it is no request of 1 to 4 lines that the monitor carries",
    [AVIARY_FPGA_SILENT] = "the accelerator did not answer",
    [AVIARY_FPGA_STUCK] = "the job did not save its state in time when another's turn began",
    [AVIARY_FPGA_OWN_ERROR] = "the accelerator says so itself: no request of it was refused",
};

EXPORTED int aviary_fpga_explain_job(aviary_fpga *card, char *text, size_t bytes)
{
    struct aviary_fpga_status status;
    int error = text && bytes ? aviary_fpga_status(card, &status) : -EINVAL;
    const char *cause;

    if (error)
        return error;
    cause = status.fault < sizeof FAULTS / sizeof *FAULTS && FAULTS[status.fault] ? FAULTS[status.fault] : "for a reason that is not known";
    if (status.phase != AVIARY_FPGA_FAILED)
        snprintf(text, bytes, "the job has not failed");
    else if (status.fault >= AVIARY_FPGA_NOT_MAPPED && status.fault <= AVIARY_FPGA_SHAPE)
        snprintf(text, bytes, "a %s 0x%llx was refused at cycle %llu: %s", status.fault_write ? "write to" : "read of",
                 (unsigned long long)status.fault_address, (unsigned long long)status.fault_cycle, cause);
    else
        snprintf(text, bytes, "at cycle %llu: %s", (unsigned long long)status.fault_cycle, cause);
    return 0;
}

EXPORTED const char *aviary_fpga_explain(int error)
{
    switch (error < 0 ? -error : error) {
    case 0: return "success";
    case EDESTADDRREQ: return "AVIARY_FPGA is not set: start the program with `aviary run --fpga IMAGE -- PROGRAM`; in a virtual machine: no PCI function is bound to vfio-pci, see docs/fpga.md";
    case EADDRINUSE: return "another program of this virtual machine has the accelerator: end it, or give the machine another device";
    case ENOTSUP: return "the virtual machine has no IOMMU for the accelerator: it needs `-device intel-iommu,intremap=on,caching-mode=on` in QEMU and `intel_iommu=on` on the kernel's command line";
    case ENOPKG: return "the virtual machine's kernel has not loaded vfio_iommu_type1, which programs that use vfio-pci need: modprobe vfio_iommu_type1";
    case ENOLCK: return "the program may pin no more memory: raise its limit to the bytes that it maps (ulimit -l, RLIMIT_MEMLOCK; `unlimited` for all)";
    case EAFNOSUPPORT: return "AVIARY_FPGA is no address of a card: expected unix:PATH";
    case ECONNREFUSED: return "the card's process has ended: start it again";
    case ECONNRESET: return "the card's process has hung up: it has ended, or has too many clients";
    case EPROTONOSUPPORT: return "library and card are of different versions: install both of one release";
    case ENOENT: return "the card has no accelerator of this type that the program may use";
    case ENXIO: return "there is no card at AVIARY_FPGA: it has ended, or the path is another one";
    case ENODEV: return "the node's card is not available, or the card of a virtual machine has ended: the node's or the device's log says why";
    case EACCES: return "this user or tenant may not use the card: its owner can change the socket's mode and the tenant's apis; in a virtual machine that of /dev/vfio";
    case EUSERS: return "the user, tenant or card has as many sessions as allowed: end another program";
    case EAGAIN: return "the card did not answer in time, or the node could not hand the connection to it: try again; the node's log says why";
    case ENOSPC: return "the card has no free IO slice: end another client";
    case EFAULT: return "the memory is not the program's alone: it is not mapped, not writable, or shared with other processes";
    case EEXIST: return "the memory is mapped for the accelerator already";
    case ENOMEM: return "there is no more memory for the accelerator: free some, or raise the limit (fpga_memory of the tenant on a node)";
    case E2BIG: return "more than 65,536 pages are mapped: use memory whose address and offset in its file are multiples of 2 MB, or free some; after an unmap in a virtual machine: other memory in the same 2 MB was unmapped, too";
    case EMFILE: return "the card has as many files of this program as it takes (64), or as many of all as it may open: free memory of other files, or start the card with a higher limit (ulimit -n)";
    case EBADF: return "the file is no memfd of ordinary pages, sealed against shrinking, with so many bytes";
    case EBUSY: return "a job is queued or runs: wait for it, or reset the accelerator";
    case EIO: return "the job failed, aviary_fpga_explain_job() says why; reset the accelerator";
    case ETIMEDOUT: return "the job still runs";
    case EINVAL: return "an argument is not valid";
    default: return strerror(error < 0 ? -error : error);
    }
}
