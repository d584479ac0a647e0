/* Requests and replies between a client and its card: crates/fpga/src/link has the other end. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

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
 * is NULL. */
int fpga_exchange(int socket, struct request request, int descriptor, struct reply *reply, int *came)
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
        bytes = sendmsg(socket, &message, MSG_NOSIGNAL);
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
        bytes = recvmsg(socket, &answer, MSG_CMSG_CLOEXEC);
        if (bytes >= 0 || (errno != EINTR && (errno != ECONNRESET || resets++)))
            break;
    }
    if (came)
        *came = bytes < 0 ? -1 : descriptor_of(&answer);
    if (bytes != sizeof *reply)
        return -ECONNRESET;
    return -(int)reply->errno_value;
}

/* The two halves of a GUID, the first one higher. False: the text is none. */
int fpga_parse_guid(const char *text, uint64_t words[2])
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
        /* ENOENT is of an accelerator. */
        int error = errno == ENOENT ? -ENXIO : -errno;
        close(socket_fd);
        return error;
    }
    return socket_fd;
}

/* The function that makes connections, once for the process. */
static int (*_Atomic connector)(void);

EXPORTED void aviary_fpga_connect_by(int (*connect)(void))
{
    atomic_store(&connector, connect);
}

int fpga_uses_functions(void)
{
    return !atomic_load(&connector) && !getenv("AVIARY_FPGA");
}

void fpga_end_connection(int socket)
{
    struct timeval most = {.tv_sec = 1};
    char byte;

    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    shutdown(socket, SHUT_WR);
    while (recv(socket, &byte, 1, 0) > 0 || errno == EINTR)
        errno = 0;
    close(socket);
}

int fpga_connect(void)
{
    int (*connect_by)(void) = atomic_load(&connector);

    return connect_by ? connect_by() : connect_to(getenv("AVIARY_FPGA"));
}
