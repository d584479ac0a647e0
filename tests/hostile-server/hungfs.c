/* A file system of an ordinary user that stops answering: FUSE in a user namespace, as sshfs behaves with a dead network. It has
 * one file, and once the file HANG is there no close() of a descriptor of it returns.
 *
 *   hungfs FUSE-DEVICE HANG EMPTY-FOLDER COMMAND...    runs the command with its standard output in that file */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int device;
static const char *hang;

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);

    if (file < 0 || write(file, text, strlen(text)) < 0)
        perror(path);
    close(file);
}

static void reply(unsigned long request, int error, void *data, size_t length)
{
    struct fuse_out_header head = {sizeof head + length, error, request};
    struct iovec parts[2] = {{&head, sizeof head}, {data, length}};

    if (writev(device, parts, length ? 2 : 1) < 0)
        return;
}

static struct fuse_attr attributes(unsigned long node)
{
    return (struct fuse_attr){.ino = node, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0666, .nlink = 1, .blksize = 4096, .uid = getuid(), .gid = getgid()};
}

static void serve(void)
{
    static char bytes[1 << 20];

    while (read(device, bytes, sizeof bytes) > 0) {
        struct fuse_in_header *head = (void *)bytes;
        void *in = bytes + sizeof *head;
        struct fuse_init_out begun = {.major = 7, .minor = 31, .max_write = 65536, .max_readahead = 65536};
        struct fuse_entry_out entry = {.nodeid = 2, .attr = attributes(2)};
        struct fuse_attr_out found = {.attr = attributes(head->nodeid)};
        struct fuse_open_out opened = {.fh = 1, .open_flags = FOPEN_DIRECT_IO};
        struct fuse_write_out written = {.size = head->opcode == FUSE_WRITE ? ((struct fuse_write_in *)in)->size : 0};

        switch (head->opcode) {
        case FUSE_INIT: reply(head->unique, 0, &begun, sizeof begun); break;
        case FUSE_LOOKUP: reply(head->unique, 0, &entry, sizeof entry); break;
        case FUSE_GETATTR:
        case FUSE_SETATTR: reply(head->unique, 0, &found, sizeof found); break;
        case FUSE_OPEN:
        case FUSE_OPENDIR: reply(head->unique, 0, &opened, sizeof opened); break;
        case FUSE_WRITE: reply(head->unique, 0, &written, sizeof written); break;
        case FUSE_FLUSH:
            if (access(hang, F_OK))
                reply(head->unique, 0, NULL, 0);
            break;
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT: break;
        case FUSE_RELEASE:
        case FUSE_ACCESS: reply(head->unique, 0, NULL, 0); break;
        default: reply(head->unique, -38, NULL, 0);
        }
    }
}

int main(int argc, char **argv)
{
    char text[600];
    int uid = getuid(), gid = getgid();

    if (argc < 5)
        return fprintf(stderr, "usage: hungfs FUSE-DEVICE HANG EMPTY-FOLDER COMMAND...\n"), 2;
    hang = argv[2];
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return perror("unshare"), 3;
    put("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "%d %d 1", uid, uid);
    put("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "%d %d 1", gid, gid);
    put("/proc/self/gid_map", text);
    device = open(argv[1], O_RDWR | O_CLOEXEC);
    if (device < 0)
        return perror(argv[1]), 3;
    snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=%d,group_id=%d,allow_other", device, uid, gid);
    if (mount("hungfs", argv[3], "fuse", 0, text))
        return perror("mount"), 3;
    if (fork() == 0) {
        setsid();
        serve();
        _exit(0);
    }
    snprintf(text, sizeof text, "%s/out", argv[3]);
    int file = open(text, O_WRONLY);
    if (file < 0)
        return perror(text), 1;
    dup2(file, 1);
    close(file);
    execvp(argv[4], argv + 4);
    return perror(argv[4]), 1;
}
