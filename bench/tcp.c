// The floor of a call over a network on this machine: two processes that send each other 100 bytes over TCP on loopback.
//
//   tcp [ROUNDS]      prints {"tcp_us": median round trip}
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "timing.h"

#define BYTES 100

static int whole(int fd) {
    char bytes[BYTES];
    for (size_t got = 0; got < BYTES;) {
        ssize_t n = recv(fd, bytes + got, BYTES - got, 0);
        if (n <= 0) return -1;
        got += (size_t)n;
    }
    return 0;
}

static int pass(int fd) {
    static const char bytes[BYTES];
    return send(fd, bytes, BYTES, MSG_NOSIGNAL) == BYTES ? 0 : -1;
}

static void at_once(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 10000;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (rounds < 1 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)
        || getsockname(listener, (struct sockaddr *)&address, &length))
        return perror("tcp"), 1;
    pid_t child = fork();
    if (child < 0) return perror("fork"), 1;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) return 1;
        at_once(fd);
        while (!whole(fd) && !pass(fd)) {
        }
        return 0;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) return perror("connect"), 1;
    at_once(fd);
    double *times = malloc((size_t)rounds * sizeof *times);
    if (!times) return 1;
    for (long i = -100; i < rounds; i++) {
        double start = (double)now();
        if (pass(fd) || whole(fd)) return fprintf(stderr, "tcp: the connection has ended\n"), 1;
        if (i >= 0) times[i] = ((double)now() - start) / 1e3;
    }
    close(fd);
    waitpid(child, NULL, 0);
    qsort(times, (size_t)rounds, sizeof *times, by_real_value);
    printf("{\"tcp_us\": %.2f}\n", times[rounds / 2]);
}
