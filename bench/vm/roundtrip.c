// The layers below a call from inside a VM: a cache line shared with the host, and a vsock stream. The floor and the
// alternative that `./x bench vm` compares lanes with. Linked statically, so that it runs in any guest.
//
//   roundtrip line-host FILE          answers on the memory of an ivshmem device until its standard input ends
//   roundtrip line-guest [ROUNDS]     needs root in the guest; prints {"line_ns": ...}
//   roundtrip line-memory             prints the file by which that memory can be mapped in the guest (root)
//   roundtrip stream-host SOCKET      answers on a unix socket, where the VM's vsock connections arrive
//   roundtrip stream-guest PORT [ROUNDS]
//                                     prints {"stream_ns": ...}
//   roundtrip bulk-guest PORT [SMALLEST LARGEST]
//                                     bytes; prints {"write_MBps": {"SIZE": ...}, "read_MBps": {...}}
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#include "../timing.h"

#define BATCH 200
#define SMALLEST ((size_t)32 << 10)
#define LARGEST ((size_t)256 << 20)

struct lines {
    _Alignas(128) _Atomic uint64_t ping;
    _Alignas(128) _Atomic uint64_t pong;
};

static void fail(const char *what) {
    fprintf(stderr, "roundtrip: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Median over batches of one round's nanoseconds.
static double median(void (*round)(uint64_t), long rounds) {
    long batches = rounds / BATCH + 1;
    double *times = malloc((size_t)batches * sizeof *times);
    if (!times) fail("memory");
    uint64_t number = 0;
    for (long b = 0; b < batches; b++) {
        uint64_t start = now();
        for (int i = 0; i < BATCH; i++) round(++number);
        times[b] = (double)(now() - start) / BATCH;
    }
    qsort(times, (size_t)batches, sizeof *times, by_real_value);
    double middle = times[batches / 2];
    free(times);
    return middle;
}

// --- a cache line ---

static struct lines *lines;

static void map_lines(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fail(path);
    lines = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (lines == MAP_FAILED) fail(path);
    close(file);
}

static void serve_lines(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    atomic_store(&lines->ping, 0);
    atomic_store(&lines->pong, 0);
    uint64_t seen = 0;
    for (uint32_t idle = 0;; idle++) {
        uint64_t ping = atomic_load_explicit(&lines->ping, memory_order_acquire);
        if (ping != seen) {
            seen = ping;
            atomic_store_explicit(&lines->pong, ping, memory_order_release);
            idle = 0;
        }
        relax();
        if (idle % (1 << 20) == (1 << 20) - 1 && poll(&input, 1, 0) > 0) return;
    }
}

static void line_round(uint64_t number) {
    atomic_store_explicit(&lines->ping, number, memory_order_release);
    while (atomic_load_explicit(&lines->pong, memory_order_acquire) != number) relax();
}

// The first ivshmem device: its memory is its second resource.
static void find_device(char *path, size_t size) {
    DIR *devices = opendir("/sys/bus/pci/devices");
    if (!devices) fail("/sys/bus/pci/devices");
    struct dirent *entry;
    while ((entry = readdir(devices))) {
        char name[300], id[16] = "";
        snprintf(name, sizeof name, "/sys/bus/pci/devices/%s/device", entry->d_name);
        int file = open(name, O_RDONLY);
        if (file < 0) continue;
        if (read(file, id, sizeof id - 1) > 0 && !strncmp(id, "0x1110", 6)) {
            snprintf(name, sizeof name, "/sys/bus/pci/devices/%s/enable", entry->d_name);
            int enable = open(name, O_WRONLY);
            if (enable < 0 || write(enable, "1", 1) != 1) fail(name);
            close(enable);
            close(file);
            snprintf(path, size, "/sys/bus/pci/devices/%s/resource2", entry->d_name);
            closedir(devices);
            return;
        }
        close(file);
    }
    fprintf(stderr, "roundtrip: this machine has no ivshmem device\n");
    exit(1);
}

// --- a stream ---

static int stream;

static void send_all(const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t sent = write(stream, (const char *)bytes + done, n - done);
        if (sent <= 0) fail("sending");
        done += (size_t)sent;
    }
}

// False at the end of the stream.
static int receive_all(void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = read(stream, (char *)bytes + done, n - done);
        if (got < 0) fail("receiving");
        if (got == 0) return 0;
        done += (size_t)got;
    }
    return 1;
}

// In a request: bytes are wanted, not sent.
#define WANTED ((uint64_t)1 << 63)

// A request is a length, then so many bytes; the answer is the length. Or the other way round.
static void serve_stream(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    unlink(path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) fail(path);
    stream = accept(listener, NULL, NULL);
    if (stream < 0) fail("accept");
    char *room = malloc(LARGEST);
    if (!room) fail("memory");
    uint64_t length;
    while (receive_all(&length, sizeof length)) {
        uint64_t bytes = length & ~WANTED;
        if (bytes > LARGEST) break;
        if (length & WANTED) {
            send_all(room, bytes);
        } else {
            if (!receive_all(room, bytes)) break;
            send_all(&length, sizeof length);
        }
    }
    unlink(path);
}

static char *load;

static void send_load(size_t n) {
    uint64_t length = n;
    send_all(&length, sizeof length);
    send_all(load, n);
    if (!receive_all(&length, sizeof length) || length != n) fail("the answer");
}

static void fetch_load(size_t n) {
    uint64_t length = n | WANTED;
    send_all(&length, sizeof length);
    if (!receive_all(load, n)) fail("the answer");
}

static void stream_round(uint64_t number) {
    (void)number;
    send_load(0);
}

static void connect_stream(unsigned port) {
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = port};
    stream = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (stream < 0) fail("vsock");
    if (connect(stream, (struct sockaddr *)&address, sizeof address)) fail("connecting to the host");
}

static void bulk_table(const char *name, void (*transfer)(size_t), size_t smallest, size_t largest) {
    printf("\"%s\": {", name);
    for (size_t n = smallest; n <= largest; n *= 2) {
        // At least two messages, and some 16 MiB.
        size_t count = ((size_t)16 << 20) / n + 2;
        uint64_t start = now();
        for (size_t i = 0; i < count; i++) transfer(n);
        double seconds = (double)(now() - start) / 1e9;
        printf("%s\"%zu\": %.2f", n > smallest ? ", " : "", n, (double)(count * n) / 1e6 / seconds);
        fflush(stdout);
    }
    printf("}");
}

static void measure_bulk(size_t smallest, size_t largest) {
    load = malloc(largest);
    if (!load || !smallest || largest > LARGEST) fail("the size");
    memset(load, 1, largest);
    printf("{");
    bulk_table("write_MBps", send_load, smallest, largest);
    printf(", ");
    bulk_table("read_MBps", fetch_load, smallest, largest);
    printf("}\n");
}

int main(int argc, char **argv) {
    const char *role = argc > 1 ? argv[1] : "";
    if (!strcmp(role, "line-host") && argc == 3) {
        map_lines(argv[2]);
        serve_lines();
    } else if (!strcmp(role, "line-guest")) {
        char path[300];
        find_device(path, sizeof path);
        map_lines(path);
        long rounds = argc > 2 ? atol(argv[2]) : 200000;
        median(line_round, rounds / 10);
        // The host knows numbers by their change only; the next ones begin again.
        printf("{\"line_ns\": %.1f}\n", median(line_round, rounds));
    } else if (!strcmp(role, "line-memory")) {
        char path[300];
        find_device(path, sizeof path);
        puts(path);
    } else if (!strcmp(role, "stream-host") && argc == 3) {
        serve_stream(argv[2]);
    } else if (!strcmp(role, "stream-guest") && argc >= 3) {
        connect_stream((unsigned)atol(argv[2]));
        printf("{\"stream_ns\": %.1f}\n", median(stream_round, argc > 3 ? atol(argv[3]) : 2000));
    } else if (!strcmp(role, "bulk-guest") && (argc == 3 || argc == 5)) {
        connect_stream((unsigned)atol(argv[2]));
        measure_bulk(argc > 3 ? strtoull(argv[3], NULL, 0) : SMALLEST, argc > 3 ? strtoull(argv[4], NULL, 0) : LARGEST);
    } else {
        fprintf(stderr, "usage: roundtrip line-host FILE | line-guest [ROUNDS] | line-memory | stream-host SOCKET | stream-guest PORT [ROUNDS] |\n"
                        "       bulk-guest PORT [SMALLEST LARGEST]\n");
        return 2;
    }
    return 0;
}
