/* fork, exec and exit: every process is a session of its own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static int child_status(pid_t child) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Opens a device of its own and uses it. */
static int work_alone(void) {
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    unsigned char byte = 1;
    if (ta_device_open("child", &device) != TA_OK || ta_buffer_create(device, 100, &buffer) != TA_OK)
        return 1;
    if (ta_buffer_fill(buffer, 0x42) != TA_OK || ta_buffer_read(buffer, 99, 1, &byte) != TA_OK)
        return 2;
    return byte == 0x42 ? 0 : 3;
}

/* Children in which no handler of pthread_atfork runs. */
static pid_t raw_fork(int way) {
    switch (way) {
    case 0:
        return _Fork();
#ifdef SYS_fork
    case 1:
        return (pid_t)syscall(SYS_fork);
#endif
    default:
        return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    }
}

static void raw_forks(void) {
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    CHECK_EQ(ta_device_open("parent", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, 100, &buffer), TA_OK);
    CHECK_EQ(ta_buffer_fill(buffer, 0x17), TA_OK);
    for (int i = 0; i < 6; i++) {
        unsigned char byte = 0;
        pid_t child = raw_fork(i % 3);
        if (child == 0) {
            alarm(60);
            /* A child of the child is one more step away from the session. */
            if (i < 3)
                _exit(work_alone());
            pid_t grandchild = raw_fork(i % 3);
            if (grandchild == 0)
                _exit(work_alone());
            _exit(child_status(grandchild) == 0 ? work_alone() : 9);
        }
        CHECK_EQ(child_status(child), 0);
        CHECK_EQ(ta_buffer_read(buffer, 99, 1, &byte), TA_OK);
        CHECK_EQ(byte, 0x17);
        CHECK_EQ(ta_add(i, 1), i + 1);
    }
    CHECK_EQ(ta_buffer_destroy(buffer), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

static void *call_forever(void *unused) {
    (void)unused;
    for (;;)
        ta_noop();
    return NULL;
}

static void forks(void) {
    ta_device device = NULL;
    CHECK_EQ(ta_device_open("parent", &device), TA_OK);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(work_alone());
        CHECK_EQ(child_status(child), 0);
        CHECK_EQ(ta_add(i, 1), i + 1); /* the parent's session is as it was */
    }
    /* A grandchild; and a child that never calls. */
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(work_alone());
        _exit(child_status(grandchild) == 0 ? work_alone() : 9);
    }
    CHECK_EQ(child_status(child), 0);
    child = fork();
    if (child == 0)
        _exit(0);
    CHECK_EQ(child_status(child), 0);
    /* exit() runs destructors in the child: they must not end the parent's session. */
    child = fork();
    if (child == 0)
        exit(0);
    CHECK_EQ(child_status(child), 0);
    uint32_t units = 0;
    CHECK_EQ(ta_device_units(device, &units), TA_OK);
    CHECK_EQ(units, 1);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "alone") == 0)
        return work_alone();
    if (argc > 1 && strcmp(argv[1], "busy-exit") == 0) {
        /* Leaves while other threads are inside calls. */
        for (int i = 0; i < 4; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, call_forever, NULL);
        }
        usleep(50000);
        exit(5);
    }
    forks();
    raw_forks();
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", argv[0], i ? "busy-exit" : "alone", (char *)NULL);
            _exit(127);
        }
        CHECK_EQ(child_status(child), i ? 5 : 0);
    }
    /* exec without fork, in the end. */
    if (check_done() != 0)
        return 1;
    execl("/proc/self/exe", argv[0], "alone", (char *)NULL);
    return 127;
}
