/* The client's end of the link to a card: crates/fpga/src/link has the other one. */
#define _GNU_SOURCE
#include "aviary-fpga.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

#define EXPORTED __attribute__((visibility("default")))
#define HUGE_PAGE ((size_t)2 << 20)
/* The register that starts a job. */
#define CONTROL 0x18
/* A thread that waits lets others in after so many milliseconds. */
#define WAIT_MS 50

/* Kinds of requests, and the version; crates/fpga/src/link/message.rs. */
enum { VERSION = 2 };
enum kind { HELLO = 1, READ, WRITE, BASE, STATE, MAP, UNMAP, RESET, WAIT, INFO, INTERRUPT };

struct request {
    uint32_t kind, small;
    uint64_t words[7];
};

struct reply {
    uint32_t errno_value, unused;
    uint64_t words[7];
};

_Static_assert(sizeof(struct request) == 64 && sizeof(struct reply) == 64, "messages have 64 bytes");

/* Memory of the program, in the order of addresses. */
struct block {
    char *address;
    size_t length;
    struct block *next;
};

struct aviary_fpga {
    /* One request at a time, and the blocks. */
    pthread_mutex_t lock;
    int socket;
    /* The region: reserved from `reserved` on, used from `region` on, which is aligned to 2 MB. */
    char *reserved, *region;
    size_t reserved_bytes, region_bytes;
    struct block *blocks;
};

/* Room for one descriptor. */
union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

/* The descriptor that came with a message, or -1. */
static int descriptor_of(struct msghdr *message)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int descriptor = -1;

    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS
        && header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return descriptor;
}

/* Sends a request, with `descriptor` unless that is -1, and takes its reply; `came` gets the reply's descriptor or -1, unless it
 * is NULL. Call with the lock. */
static int exchange(aviary_fpga *card, struct request request, int descriptor, struct reply *reply, int *came)
{
    struct iovec out = {&request, sizeof request}, in = {reply, sizeof *reply};
    union control control;
    struct msghdr message = {.msg_iov = &out, .msg_iovlen = 1};
    struct msghdr answer = {.msg_iov = &in, .msg_iovlen = 1};
    ssize_t bytes;
    int resets;

    memset(&control, 0, sizeof control);
    if (descriptor >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    }
    do
        bytes = sendmsg(card->socket, &message, MSG_NOSIGNAL);
    while (bytes < 0 && errno == EINTR);
    /* A card that takes no more clients answers before the first request, and hangs up. */
    if (bytes != sizeof request && errno != EPIPE && errno != ECONNRESET)
        return -ECONNRESET;
    if (came) {
        answer.msg_control = control.space;
        answer.msg_controllen = sizeof control.space;
    }
    /* The kernel tells once that the request was not read before it gives the answer that came earlier. */
    for (resets = 0;;) {
        bytes = recvmsg(card->socket, &answer, MSG_CMSG_CLOEXEC);
        if (bytes >= 0 || (errno != EINTR && (errno != ECONNRESET || resets++)))
            break;
    }
    if (came)
        *came = bytes < 0 ? -1 : descriptor_of(&answer);
    if (bytes != sizeof *reply)
        return -ECONNRESET;
    return -(int)reply->errno_value;
}

static int ask(aviary_fpga *card, struct request request, int descriptor, struct reply *reply)
{
    struct reply ignored;

    return exchange(card, request, descriptor, reply ? reply : &ignored, NULL);
}

static int ask_locked(aviary_fpga *card, struct request request, struct reply *reply)
{
    int error;

    pthread_mutex_lock(&card->lock);
    error = ask(card, request, -1, reply);
    pthread_mutex_unlock(&card->lock);
    return error;
}

/* The two halves of a GUID, the first one higher. False: the text is none. */
static int parse_guid(const char *text, uint64_t words[2])
{
    int digits = 0;

    words[0] = words[1] = 0;
    for (; *text; text++) {
        char digit = *text;
        int value = digit >= '0' && digit <= '9' ? digit - '0'
            : (digit | 32) >= 'a' && (digit | 32) <= 'f' ? (digit | 32) - 'a' + 10 : -1;
        if (digit == '-')
            continue;
        if (value < 0 || digits == 32)
            return 0;
        words[digits / 16] = words[digits / 16] << 4 | (uint64_t)value;
        digits++;
    }
    return digits == 32;
}

static int connect_to(const char *place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int socket_fd;

    if (!place)
        return -EDESTADDRREQ;
    if (strncmp(place, "unix:", 5) != 0 || strlen(place + 5) >= sizeof address.sun_path)
        return -EAFNOSUPPORT;
    strcpy(address.sun_path, place + 5);
    socket_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (socket_fd < 0)
        return -errno;
    if (connect(socket_fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = -errno;
        close(socket_fd);
        return error;
    }
    return socket_fd;
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
    error = ask_locked(card, (struct request){BASE, 0, {(uintptr_t)card->region}}, NULL);
    if (error)
        return error;
    state = aviary_fpga_malloc(card, state_bytes ? state_bytes : 1);
    if (!state)
        return -errno;
    return ask_locked(card, (struct request){STATE, 0, {(uintptr_t)state}}, NULL);
}

EXPORTED int aviary_fpga_connect(const char *guid, aviary_fpga **accelerator)
{
    aviary_fpga *card;
    struct request hello = {HELLO, VERSION, {0}};
    struct reply reply;
    int error;

    if (!guid || !accelerator || !parse_guid(guid, hello.words))
        return -EINVAL;
    *accelerator = NULL;
    card = calloc(1, sizeof *card);
    if (!card)
        return -ENOMEM;
    pthread_mutex_init(&card->lock, NULL);
    card->socket = connect_to(getenv("AVIARY_FPGA"));
    error = card->socket < 0 ? card->socket : ask_locked(card, hello, &reply);
    if (!error)
        error = set_up(card, reply.words[1], reply.words[2]);
    if (error) {
        aviary_fpga_disconnect(card);
        return error;
    }
    *accelerator = card;
    return 0;
}

EXPORTED void aviary_fpga_disconnect(aviary_fpga *card)
{
    if (!card)
        return;
    /* The card ends the job before it lets go of the memory, which stays mapped there until then. */
    if (card->socket >= 0)
        close(card->socket);
    if (card->reserved)
        munmap(card->reserved, card->reserved_bytes);
    while (card->blocks) {
        struct block *block = card->blocks;
        card->blocks = block->next;
        free(block);
    }
    pthread_mutex_destroy(&card->lock);
    free(card);
}

EXPORTED int aviary_fpga_reset(aviary_fpga *card)
{
    return ask_locked(card, (struct request){RESET, 0, {0}}, NULL);
}

EXPORTED int aviary_fpga_read(aviary_fpga *card, uint32_t offset, uint64_t *value)
{
    struct reply reply = {0};
    int error = ask_locked(card, (struct request){READ, 8, {offset}}, &reply);

    *value = reply.words[0];
    return error;
}

EXPORTED int aviary_fpga_write(aviary_fpga *card, uint32_t offset, uint64_t value)
{
    return ask_locked(card, (struct request){WRITE, 8, {offset, value}}, NULL);
}

/* The first gap of the region that is large enough, as the link that leads to what follows it. */
static struct block **gap(aviary_fpga *card, size_t length, char **address)
{
    struct block **link = &card->blocks;

    *address = card->region;
    for (; *link; link = &(*link)->next) {
        if ((size_t)((*link)->address - *address) >= length)
            return link;
        *address = (*link)->address + (*link)->length;
    }
    return (size_t)(card->region + card->region_bytes - *address) >= length ? link : NULL;
}

/* Memory in a file that the card maps as well, sealed so that it cannot shrink under the card. */
static int shared_file(size_t length)
{
    int file = memfd_create("aviary-fpga", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (file >= 0 && (ftruncate(file, (off_t)length) != 0 || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) != 0)) {
        int error = errno;
        close(file);
        errno = error;
        return -1;
    }
    return file;
}

static void *reserve_again(void *address, size_t length)
{
    return mmap(address, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

EXPORTED void *aviary_fpga_malloc(aviary_fpga *card, size_t bytes)
{
    size_t length = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    struct block *block = malloc(sizeof *block), **link;
    char *address = NULL;
    int file = -1, error = ENOMEM;

    if (!block || length < bytes || length == 0 || length > card->region_bytes) {
        free(block);
        errno = bytes == 0 ? EINVAL : ENOMEM;
        return NULL;
    }
    pthread_mutex_lock(&card->lock);
    link = gap(card, length, &address);
    if (link)
        file = shared_file(length);
    if (file >= 0) {
        if (mmap(address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
            error = errno;
        } else {
            error = -ask(card, (struct request){MAP, 1, {(uintptr_t)address, length, 0}}, file, NULL);
            if (error)
                reserve_again(address, length);
        }
        close(file);
    } else if (link) {
        error = errno;
    }
    if (!error) {
        *block = (struct block){address, length, *link};
        *link = block;
    }
    pthread_mutex_unlock(&card->lock);
    if (error) {
        free(block);
        errno = error;
        return NULL;
    }
    return address;
}

EXPORTED void aviary_fpga_free(aviary_fpga *card, void *memory)
{
    struct block **link, *block;

    if (!memory)
        return;
    pthread_mutex_lock(&card->lock);
    for (link = &card->blocks; *link && (*link)->address != memory; link = &(*link)->next)
        ;
    block = *link;
    if (block && ask(card, (struct request){UNMAP, 0, {(uintptr_t)memory, block->length}}, -1, NULL) == 0) {
        *link = block->next;
        reserve_again(block->address, block->length);
        free(block);
    }
    pthread_mutex_unlock(&card->lock);
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

EXPORTED int aviary_fpga_wait(aviary_fpga *card, int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;

    for (;;) {
        struct aviary_fpga_status status;
        int64_t left = timeout_ms < 0 ? WAIT_MS : end - now_ms();
        int error = aviary_fpga_status(card, &status);

        if (error)
            return error;
        if (status.phase != AVIARY_FPGA_QUEUED && status.phase != AVIARY_FPGA_RUNNING)
            return status.phase == AVIARY_FPGA_FAILED ? -EIO : 0;
        if (left <= 0)
            return -ETIMEDOUT;
        error = ask_locked(card, (struct request){WAIT, (uint32_t)(left < WAIT_MS ? left : WAIT_MS), {0}}, NULL);
        if (error)
            return error;
    }
}

EXPORTED int aviary_fpga_event(aviary_fpga *card, unsigned vector, int *descriptor)
{
    struct reply reply;
    int error;

    pthread_mutex_lock(&card->lock);
    error = exchange(card, (struct request){INTERRUPT, vector, {0}}, -1, &reply, descriptor);
    pthread_mutex_unlock(&card->lock);
    /* Only a card that is not ours answers without one. */
    return !error && *descriptor < 0 ? -EPROTO : error;
}

EXPORTED int aviary_fpga_status(aviary_fpga *card, struct aviary_fpga_status *status)
{
    struct reply reply;
    int error = ask_locked(card, (struct request){INFO, 0, {0}}, &reply);

    if (!error)
        memcpy(status, reply.words, sizeof *status);
    return error;
}

EXPORTED const char *aviary_fpga_explain(int error)
{
    switch (error < 0 ? -error : error) {
    case 0: return "success";
    case EDESTADDRREQ: return "AVIARY_FPGA is not set: start the program with `aviary run --fpga IMAGE -- PROGRAM`";
    case EAFNOSUPPORT: return "AVIARY_FPGA is no address of a card: expected unix:PATH";
    case ECONNREFUSED: return "the card's process has ended: start it again";
    case ECONNRESET: return "the card's process has hung up: it has ended, or has too many clients";
    case EPROTONOSUPPORT: return "library and card are of different versions: install both of one release";
    case ENOENT: return "the card has no accelerator of this type that the program may use, or there is no card at AVIARY_FPGA";
    case ENODEV: return "the node's card is not there: its log says why";
    case EACCES: return "this user or tenant may not use the card: its owner can change the socket's mode and the tenant's apis";
    case EUSERS: return "the user, tenant or card has as many sessions as allowed: end another program";
    case EAGAIN: return "the node could not hand the connection to its card: try again; the node's log says why";
    case ENOSPC: return "the card has no free IO slice: end another client";
    case ENOMEM: return "there is no more memory for the accelerator: free some, or raise the limit (fpga_memory of the tenant on a node)";
    case EBUSY: return "a job is queued or runs: wait for it, or reset the accelerator";
    case EIO: return "the job failed: it used an address outside of its memory, or did not answer; reset the accelerator";
    case ETIMEDOUT: return "the job still runs";
    case EINVAL: return "an argument is not valid";
    default: return strerror(error < 0 ? -error : error);
    }
}
