// Attempts of code that took an API server over. Static; started by implant.c inside the API server.
//   attempts              each attempt in a process of its own, one line each: NAME works | refused ERRNO | killed SIGNAL
//   attempts linger       leaves processes behind that try to outlive the session
//   attempts "stay MS"    the same, and one that keeps a CPU busy; prints `ready` and the API server's id, and ends MS later
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

typedef long (*attempt)(void);

static long opens(const char *path) { return open(path, O_RDONLY); }
static long passwd(void) { return opens("/etc/passwd"); }
static long shadow(void) { return opens("/etc/shadow"); }
static long home_of_root(void) { return opens("/root"); }
static long host_memory(void) { return opens("/dev/mem"); }
static long kernel_log(void) { return opens("/dev/kmsg"); }
static long run_folder(void) { return opens("/run"); }
static long shell(void) {
    char *const arguments[] = {"sh", "-c", "exit 0", NULL};
    return execve("/bin/sh", arguments, NULL);
}

// Processes that are neither of the sandbox nor its process 1, of which nothing can be read.
static long other_processes(void) {
    DIR *folder = opendir("/proc");
    if (!folder) return -1;
    long seen = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        int number = atoi(entry->d_name);
        char path[64], link[64];
        if (number <= 1) continue;
        snprintf(path, sizeof path, "/proc/%d/cwd", number);
        if (readlink(path, link, sizeof link) < 0) seen++;
    }
    errno = ESRCH;
    return seen > 0 ? 0 : -1;
}

// Something of process 1 that its own user alone may see.
static long process_one(void) { return opens("/proc/1/environ"); }
static long memory_of_process_one(void) { return open("/proc/1/mem", O_RDWR); }
static long environment_of_node(void) {
    FILE *file = fopen("/proc/1/environ", "r");
    if (!file) return -1;
    static char text[1 << 16];
    size_t length = fread(text, 1, sizeof text, file);
    errno = ENOENT;
    return memmem(text, length, "TEST_SECRET", 11) ? 0 : -1;
}

static long internet(void) { return socket(AF_INET, SOCK_STREAM, 0); }
static long internet6(void) { return socket(AF_INET6, SOCK_DGRAM, 0); }
// Some drivers need unix sockets, so that an API's list may have them: none leads to the node.
static long unix_socket(void) {
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    glob_t found;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (end < 0) return -1;
    if (glob("/tmp/aviary-hostile.*/node.*/node.sock", 0, NULL, &found) != 0) {
        errno = ENOENT;
        return -1;
    }
    strncpy(address.sun_path, found.gl_pathv[0], sizeof address.sun_path - 1);
    return connect(end, (struct sockaddr *)&address, sizeof address);
}
static long netlink(void) { return socket(AF_NETLINK, SOCK_RAW, 12); }
static long packets(void) { return socket(AF_PACKET, SOCK_RAW, 0); }
static long vsock(void) { return socket(AF_VSOCK, SOCK_STREAM, 0); }
static long new_user(void) { return unshare(CLONE_NEWUSER); }
static long new_mounts(void) { return unshare(CLONE_NEWNS); }
static long cloned(unsigned long flags) {
    long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}
static long clone_user(void) { return cloned(CLONE_NEWUSER); }
static long clone_mounts(void) { return cloned(CLONE_NEWNS); }
static long clone_network(void) { return cloned(CLONE_NEWNET); }
static long clone3_user(void) {
    struct { unsigned long flags, pidfd, child, parent, signal, stack, size, tls; } arguments = {.flags = CLONE_NEWUSER, .signal = SIGCHLD};
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0) _exit(0);
    return child;
}
static long join(void) { return setns(open("/proc/self/ns/net", O_RDONLY), 0); }
static long mounts(void) { return mount("none", "/tmp", "tmpfs", 0, NULL); }
static long file_systems(void) { return syscall(SYS_fsopen, "tmpfs", 0); }
static long trees(void) { return syscall(SYS_open_tree, AT_FDCWD, "/", 1); }
static long unmounts(void) { return umount2("/proc", MNT_DETACH); }
static long roots(void) { return chroot("/tmp"); }
static long traces(void) { return syscall(SYS_ptrace, 0, 0, 0, 0); }
static long traces_server(void) { return syscall(SYS_ptrace, 16, 1, 0, 0); }
static long reads_memory(void) { return syscall(SYS_process_vm_readv, 1, 0, 0, 0, 0, 0); }
static long descriptors(void) { return syscall(SYS_pidfd_open, 1, 0); }
static long handles(void) { return syscall(SYS_open_by_handle_at, AT_FDCWD, 0, 0); }
static long programs(void) { return syscall(SYS_bpf, 0, 0, 0); }
static long performance(void) { return syscall(SYS_perf_event_open, 0, 0, 0, 0, 0); }
static long faults(void) { return syscall(SYS_userfaultfd, 1); }
static long rings(void) { return syscall(SYS_io_uring_setup, 1, 0); }
static long keys(void) { return syscall(SYS_keyctl, 0, -3, 0); }
static long descriptors_table(void) { return syscall(SYS_modify_ldt, 0, 0, 0); }
static long personalities(void) { return syscall(SYS_personality, 0x0040000); }
static long watches(void) { return syscall(SYS_fanotify_init, 0, 0); }
static long kernel_messages(void) { return syscall(SYS_syslog, 3, 0, 0); }
static long secrets(void) { return syscall(SYS_memfd_secret, 0); }
static long takes_descriptor(void) { return syscall(SYS_pidfd_getfd, 0, 0, 0); }
static long types_into_terminal(void) { return ioctl(0, TIOCSTI, "x"); }
// Requests that reach drivers, of descriptors that the API server gave away.
static long odd_request(void) { return ioctl(1, 0x5421 + 0x70000000, 0); }
// The node's log is a pipe: there is nothing to rewrite.
static long rewrites_log(void) { return ftruncate(2, 0) < 0 && pwrite(2, "x", 1, 0) < 0 ? -1 : 0; }
// Signals reach processes of the sandbox only, and are refused there.
static long signals_all(void) { return kill(-1, SIGKILL); }
static long watches_files(void) { return syscall(SYS_inotify_init1, 0); }
static long remaps(void) { return syscall(SYS_remap_file_pages, 0, 4096, 0, 1, 0); }
static long sees_host_devices(void) {
    DIR *folder = opendir("/dev");
    if (!folder) return -1;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (!strcmp(entry->d_name, "vda") || !strcmp(entry->d_name, "kvm") || !strcmp(entry->d_name, "vsock")) return 0;
    errno = ENOENT;
    return -1;
}
// More than a private /tmp takes.
static long fills_disk(void) {
    int file = open("/tmp/filler", O_WRONLY | O_CREAT, 0600);
    if (file < 0) return -1;
    static char block[1 << 20];
    memset(block, 1, sizeof block);
    for (int i = 0; i < 400; i++) {
        if (write(file, block, sizeof block) == sizeof block) continue;
        int error = errno;
        unlink("/tmp/filler");
        errno = error;
        return -1;
    }
    unlink("/tmp/filler");
    return 0;
}
static long becomes_root(void) { return setuid(0); }
static long old_calls(void) {
    long result;
    // getpid by the 32-bit table.
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory");
    if (result < 0) errno = -result;
    return result < 0 ? -1 : result;
}
static long writes_system(void) { return open("/usr/lib/aviary-was-here", O_WRONLY | O_CREAT, 0600); }
static long writes_root(void) { return open("/aviary-was-here", O_WRONLY | O_CREAT, 0600); }
static long makes_device(void) { return mknod("/tmp/device", S_IFCHR | 0666, 0); }

static const struct {
    const char *name;
    attempt attempt;
} ATTEMPTS[] = {
    {"read-passwd", passwd}, {"read-shadow", shadow}, {"read-root-home", home_of_root}, {"read-dev-mem", host_memory},
    {"read-kmsg", kernel_log}, {"read-run", run_folder}, {"exec-shell", shell}, {"see-processes", other_processes},
    {"read-node-environment", environment_of_node}, {"read-process-1", process_one}, {"write-process-1", memory_of_process_one}, {"socket-inet", internet}, {"socket-inet6", internet6},
    {"socket-unix", unix_socket}, {"socket-netlink", netlink}, {"socket-packet", packets}, {"socket-vsock", vsock},
    {"unshare-user", new_user}, {"unshare-mounts", new_mounts}, {"clone-user", clone_user}, {"clone-mounts", clone_mounts},
    {"clone-network", clone_network}, {"clone3-user", clone3_user}, {"setns", join}, {"mount", mounts}, {"fsopen", file_systems},
    {"open_tree", trees}, {"umount", unmounts}, {"chroot", roots}, {"ptrace", traces}, {"ptrace-server", traces_server},
    {"process_vm_readv", reads_memory}, {"pidfd_open", descriptors}, {"open_by_handle_at", handles}, {"bpf", programs},
    {"perf_event_open", performance}, {"userfaultfd", faults}, {"io_uring", rings}, {"keyctl", keys},
    {"modify_ldt", descriptors_table}, {"personality", personalities}, {"fanotify", watches}, {"syslog", kernel_messages},
    {"memfd_secret", secrets}, {"setuid-root", becomes_root}, {"int80", old_calls}, {"write-usr", writes_system},
    {"write-root", writes_root}, {"mknod", makes_device}, {"pidfd_getfd", takes_descriptor}, {"terminal", types_into_terminal},
    {"ioctl", odd_request}, {"rewrite-log", rewrites_log}, {"kill-all", signals_all}, {"inotify", watches_files},
    {"remap_file_pages", remaps}, {"host-devices", sees_host_devices}, {"fill-disk", fills_disk},
};

static void tries(const char *name, attempt attempt) {
    pid_t child = fork();
    if (child == 0) {
        errno = 0;
        long result = attempt();
        _exit(result >= 0 ? 0 : errno ? errno : 255);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) printf("%s cannot-try %d\n", name, errno);
    else if (WIFSIGNALED(status)) printf("%s killed %d\n", name, WTERMSIG(status));
    else if (WEXITSTATUS(status) == 0) printf("%s works\n", name);
    else printf("%s refused %d\n", name, WEXITSTATUS(status));
    fflush(stdout);
}

static void linger(void) {
    for (int i = 0; i < 3; i++) {
        if (fork() != 0) continue;
        if (fork() != 0) _exit(0);
        // setsid would be refused; the process goes on without a terminal all the same.
        for (int fd = 0; fd < 64; fd++) close(fd);
        for (;;) pause();
    }
    printf("lingering\n");
    fflush(stdout);
}

static void stay(long milliseconds) {
    for (int i = 0; i < 3; i++) {
        if (fork() != 0) continue;
        if (fork() != 0) _exit(0);
        signal(SIGTERM, SIG_IGN);
        for (int fd = 0; fd < 64; fd++) close(fd);
        while (i > 0) pause();
        for (volatile long round = 0;; round++) {}
    }
    printf("ready %d\n", getppid());
    fflush(stdout);
    usleep(milliseconds * 1000);
}

// Its home is the working directory, as a process has it that its API server starts.
static void fills(const char *name, const char *path) {
    static char block[1 << 16];
    long written = 0, done;
    int file = open(path, O_WRONLY | O_CREAT, 0600), error = file < 0 ? errno : 0;
    memset(block, 1, sizeof block);
    while (!error && written < 1L << 30)
        if ((done = write(file, block, sizeof block)) > 0) written += done;
        else error = errno;
    printf("%s %ld %s\n", name, written, error ? strerror(error) : "no error");
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "fill") == 0) {
        fills("home", "filler");
        fills("shared", "/dev/shm/filler");
        for (;;) usleep(100000);
    }
    if (argc > 1 && strncmp(argv[1], "stay ", 5) == 0) {
        stay(atol(argv[1] + 5));
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "linger") == 0) {
        linger();
        return 0;
    }
    for (size_t i = 0; i < sizeof ATTEMPTS / sizeof *ATTEMPTS; i++) tries(ATTEMPTS[i].name, ATTEMPTS[i].attempt);
    printf("done\n");
    return 0;
}
