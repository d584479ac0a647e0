/* Awkward but legal programs: before main, under signals, on small stacks, forking amid calls, leaving from a callback. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static int32_t before_main;

__attribute__((constructor)) static void early(void) {
    before_main = ta_add(1, 2);
}

static _Atomic int ticks;

static void on_tick(int signal) {
    (void)signal;
    atomic_fetch_add(&ticks, 1);
}

static void under_signals(void) {
    struct sigaction action = {.sa_handler = on_tick}; /* no SA_RESTART */
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    static unsigned char data[100000], back[100000];
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    int wrong = 0;
    memset(data, 0x3c, sizeof data);
    CHECK_EQ(ta_device_open("signals", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, sizeof data, &buffer), TA_OK);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 150; i++) {
        wrong += ta_buffer_fill(buffer, 0) != TA_OK;
        wrong += ta_buffer_write(buffer, 0, sizeof data, data) != TA_OK;
        wrong += ta_buffer_read(buffer, 0, sizeof back, back) != TA_OK || back[99999] != 0x3c;
        wrong += ta_work(500) != TA_OK;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK_EQ(wrong, 0);
    CHECK(atomic_load(&ticks) > 10);
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

static char text_is_right[] = "right";

static void *small(void *unused) {
    char text[32] = "";
    (void)unused;
    int right = ta_add(4, 5) == 9 && ta_upper("small", text, sizeof text) == TA_OK;
    return right && strcmp(text, "SMALL") == 0 ? text_is_right : NULL;
}

static void on_a_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *right = NULL;
    pthread_attr_init(&attributes);
    CHECK_EQ(pthread_attr_setstacksize(&attributes, 64 * 1024), 0);
    CHECK_EQ(pthread_create(&thread, &attributes, small, NULL), 0);
    pthread_join(thread, &right);
    CHECK(right != NULL);
}

static _Atomic int stop;

static void *busy(void *unused) {
    uintptr_t wrong = 0;
    (void)unused;
    while (!atomic_load(&stop)) {
        ta_noop_async();
        wrong += ta_add(1, 1) != 2;
    }
    return (void *)wrong;
}

static void fork_amid_calls(void) {
    pthread_t threads[3];
    uintptr_t wrong = 0;
    int bad = 0;
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, busy, NULL);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(ta_add(i, 1) == i + 1 ? 0 : 1);
        int status = -1;
        waitpid(child, &status, 0);
        bad += status != 0;
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        wrong += (uintptr_t)result;
    }
    CHECK_EQ(bad, 0);
    CHECK_EQ(wrong, 0);
}

static int32_t leave(uint32_t index, void *context) {
    if (index == 2)
        _exit(*(int *)context);
    return 0;
}

static int32_t leave_politely(uint32_t index, void *context) {
    if (index == 2)
        exit(*(int *)context);
    return 0;
}

static void exit_from_a_callback(void) {
    int code = 17;
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            ta_each(5, i ? leave : leave_politely, &code);
            _exit(1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 17);
    }
}

/* The steps of daemons at their start. A library cannot keep its connection then; it must not harm the program. */
static void close_everything(void) {
    pid_t child = fork();
    if (child == 0) {
        ta_add(1, 1);
        for (int fd = 3; fd < 200; fd++)
            close(fd);
        int pipes[2], sockets[8][2];
        if (pipe(pipes) != 0)
            _exit(2);
        /* The descriptor numbers that the library used are the program's own files now. */
        for (int i = 0; i < 8; i++)
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]) != 0)
                _exit(2);
        signal(SIGALRM, SIG_DFL);
        alarm(20); /* rather a failure than a test that hangs */
        for (int i = 0; i < 10; i++)
            ta_add(1, 1); /* works or fails */
        for (int i = 0; i < 8; i++) {
            struct pollfd ends[2] = {{sockets[i][0], POLLIN, 0}, {sockets[i][1], POLLIN, 0}};
            if (poll(ends, 2, 0) != 0)
                _exit(4);
        }
        char byte = 'x';
        _exit(write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1 && byte == 'x' ? 0 : 3);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
}

int main(void) {
    CHECK_EQ(before_main, 3);
    under_signals();
    on_a_small_stack();
    fork_amid_calls();
    exit_from_a_callback();
    close_everything();
    return check_done();
}
