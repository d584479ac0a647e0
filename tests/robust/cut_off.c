/* Starts a program that cannot connect to the node's socket.
 * cut_off files COMMAND...    the socket's folder is another one here, and all inherited descriptors are closed
 * cut_off socket COMMAND...   the process may not call `socket`
 * Exit status 77: this user may not do that. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int hide_files(void) {
    const char *address = getenv("AVIARY_SERVER");
    char *folder = address ? strdup(address + strlen("unix:")) : NULL;
    char *end = folder ? strrchr(folder, '/') : NULL;
    if (!end)
        return 1;
    *end = 0;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
        || mount("none", folder, "tmpfs", 0, NULL) != 0)
        return 77;
    for (int file = 3; file < 65536; file++)
        close(file);
    return 0;
}

static int forbid_sockets(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    int done = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    return done ? 0 : 77;
}

int main(int count, char **arguments) {
    if (count < 3)
        return 1;
    int status = strcmp(arguments[1], "files") == 0 ? hide_files() : forbid_sockets();
    if (status)
        return status;
    execvp(arguments[2], arguments + 2);
    return 1;
}
