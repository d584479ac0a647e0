/* A guest that makes descriptors whose close() waits for hours, and leaves them to others: in connections to the node's socket, or
 * in the API server's control socket, by a kernel with inline assembly.
 *
 *   waiting KIND connect SOCKET    in 80 connections, more than one process may have
 *   waiting KIND each SOCKET       the same, with one of its own in each of 60: the node closes those that it refuses
 *   waiting KIND send MESSAGE      with this message of the API server; \xff in it stands for garbage
 *
 * KIND: tcp (a connection that lingers and whose peer does not read), nested (that, in flight in a socket in flight), cycle (in
 * flight in itself), pipe (full), tty (with output that nobody takes), file (standard output). A peer process stays until its
 * standard input ends. */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Sends one byte with descriptors. */
static void leave(int to, const int *descriptors, int count)
{
    char byte = 'x', space[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec text = {&byte, 1};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = space, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(rights), descriptors, count * sizeof(int));
    if (sendmsg(to, &message, MSG_NOSIGNAL) < 0)
        perror("sendmsg");
}

static int lingering(void)
{
    int small = 4096, listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger hours = {1, 30000};
    socklen_t length = sizeof address;
    static char much[1 << 16];

    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1) || getsockname(listener, (void *)&address, &length))
        die("listen");
    if (connect(one, (void *)&address, sizeof address))
        die("connect");
    if (fork() == 0) {
        /* The peer: it holds the connection and reads nothing. */
        signal(SIGTERM, SIG_DFL);
        close(one);
        close(1);
        close(2);
        while (read(0, much, 1) > 0)
            ;
        _exit(0);
    }
    close(listener);
    setsockopt(one, SOL_SOCKET, SO_LINGER, &hours, sizeof hours);
    fcntl(one, F_SETFL, O_NONBLOCK);
    while (write(one, much, sizeof much) > 0)
        ;
    return one;
}

/* A socket in which this is in flight, with itself if it shall be its own prisoner. */
static int around(int inner, int itself)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    leave(pair[1], (int[]){inner, pair[0]}, itself ? 2 : 1);
    close(pair[1]);
    close(inner);
    return pair[0];
}

static int terminal(void)
{
    int main = posix_openpt(O_RDWR | O_NOCTTY);

    if (main < 0 || grantpt(main) || unlockpt(main))
        die("posix_openpt");
    int end = open(ptsname(main), O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (end < 0)
        die("ptsname");
    while (write(end, "output", 6) > 0)
        ;
    return end;
}

static int waiting(const char *kind)
{
    int pipes[2];

    if (!strcmp(kind, "tcp"))
        return lingering();
    if (!strcmp(kind, "nested"))
        return around(around(lingering(), 0), 0);
    if (!strcmp(kind, "cycle"))
        return around(lingering(), 1);
    if (!strcmp(kind, "file"))
        return dup(1);
    if (!strcmp(kind, "tty"))
        return terminal();
    if (pipe2(pipes, O_NONBLOCK))
        die("pipe");
    while (write(pipes[1], "x", 1) > 0)
        ;
    return pipes[1];
}

static int connections(const char *kind, const char *path, int each)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int last = -1, one = each ? -1 : waiting(kind);

    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    for (int count = 0; count < (each ? 60 : 80); count++) {
        if (each)
            one = waiting(kind);
        last = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(last, (void *)&address, sizeof address))
            die("connect");
        leave(last, &one, 1);
        if (each)
            close(one);
    }
    puts("left");
    fflush(stdout);
    /* Until the node has refused some. */
    poll(&(struct pollfd){last, POLLIN, 0}, 1, 30000);
    return 0;
}

static const char *source =
    "static long sc(long n, long a, long b, long c) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(n), \"D\"(a), \"S\"(b), \"d\"(c)"
    " : \"rcx\", \"r11\", \"memory\"); return r; }\n"
    "kernel void k(global long *m, global uchar *text, ulong length, global long *out) {\n"
    /* m: a msghdr, from word 8 on an iovec, from word 16 on the rights */
    "  m[0] = 0; m[1] = 0; m[2] = (long)(m + 8); m[3] = 1; m[4] = (long)(m + 16); m[5] = 256; m[6] = 0; m[8] = (long)(m + 60); m[9] = 8;\n"
    "  long got = sc(47, 1, (long)m, 0x40); global int *fds = (global int *)(m + 18); int fd = fds[0];\n"
    "  out[0] = got; if (got <= 0) return;\n"
    "  for (int to = 3; to < 64; to++) {\n"
    "    global uint *st = (global uint *)(m + 80);\n"
    "    if (to == fd || sc(5, to, (long)st, 0) < 0 || (st[6] & 0170000) != 0140000) continue;\n"
    "    m[0] = 0; m[1] = 0; m[2] = (long)(m + 8); m[3] = 1; m[4] = (long)(m + 16); m[5] = 24; m[6] = 0; m[8] = (long)text; m[9] = length;\n"
    "    m[16] = 20; m[17] = 1L | (1L << 32); fds[0] = fd; out[1] += sc(46, to, (long)m, 0x4040) > 0;\n"
    "  }\n"
    "  sc(3, fd, 0, 0);\n"
    "}\n";

/* The descriptor reaches the API server in its standard output, a socket, and from there the node. */
static int send_by_kernel(const char *kind, const char *message)
{
    int pair[2], one = waiting(kind);
    long space[512] = {0}, out[8] = {0};
    cl_platform_id platform;
    cl_device_id device;
    cl_int error;
    cl_ulong length = strlen(message);
    size_t single = 1;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        die("socketpair");
    leave(pair[0], &one, 1);
    close(one);
    dup2(pair[1], 1);
    close(pair[1]);
    if (clGetPlatformIDs(1, &platform, NULL) || clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL))
        return fprintf(stderr, "no device\n"), 1;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &error);
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &error);
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &error);
    if (clBuildProgram(program, 1, &device, "", NULL, NULL))
        return fprintf(stderr, "the kernel does not build\n"), 1;
    cl_kernel kernel = clCreateKernel(program, "k", &error);
    cl_mem_flags copied = CL_MEM_COPY_HOST_PTR;
    cl_mem words = clCreateBuffer(context, copied, sizeof space, space, &error);
    cl_mem text = clCreateBuffer(context, copied, length, (void *)message, &error);
    cl_mem result = clCreateBuffer(context, copied, sizeof out, out, &error);
    clSetKernelArg(kernel, 0, sizeof words, &words);
    clSetKernelArg(kernel, 1, sizeof text, &text);
    clSetKernelArg(kernel, 2, sizeof length, &length);
    clSetKernelArg(kernel, 3, sizeof result, &result);
    fprintf(stderr, "sending\n");
    clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &single, &single, 0, NULL, NULL);
    /* The node ends the API server for the message. */
    error = clFinish(queue);
    if (clEnqueueReadBuffer(queue, result, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL) == 0)
        fprintf(stderr, "received %ld, sent %ld\n", out[0], out[1]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "usage: waiting KIND connect SOCKET | each SOCKET | send MESSAGE\n"), 2;
    if (!strcmp(argv[2], "send"))
        return send_by_kernel(argv[1], argv[3]);
    return connections(argv[1], argv[3], !strcmp(argv[2], "each"));
}
