/* Which devices an application sees: the driver reads CUDA_VISIBLE_DEVICES when it is initialized, and here that is the
 * application's, not this process's. Where the node has a list of its own, the application's counts among the devices
 * that this one shows: it can choose and order them, and get no other. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_SHOWN = 64, UUID_TEXT = sizeof "GPU-00112233-4455-6677-8899-aabbccddeeff" };
/* Longer than any list; what is once in the environment is never freed. */
enum { LONGEST_LIST = 16384 };
static const char VISIBLE[] = "CUDA_VISIBLE_DEVICES", ORDER[] = "CUDA_DEVICE_ORDER";

/* What the node's own environment says. */
static struct {
    int known;
    /* The node serves one program, from that program's environment: it has no wishes of its own. */
    int private_node;
    char *visible;
    char *order;
} node;

static char *copy_of(const char *name) {
    const char *value = getenv(name);
    return value ? strdup(value) : NULL;
}

/* Nothing else here changes the environment. */
static CUresult put(const char *name, const char *value) {
    if (value && strlen(value) > LONGEST_LIST) {
        aviary_log("%s of the application has more than %d characters", name, LONGEST_LIST);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return (value ? setenv(name, value, 1) : unsetenv(name)) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- What the node shows --------------------------------------------------------------------- */

struct shown {
    int count;
    CUuuid uuids[MOST_SHOWN];
};

/* In a process of its own, since a driver reads the list once. */
static void tell_devices(int to) {
    struct shown shown = {0};
    int count = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS)
        for (CUdevice device = 0; device < count && device < MOST_SHOWN; device++)
            if (cuDeviceGetUuid_v2(&shown.uuids[device], device) == CUDA_SUCCESS)
                shown.count = device + 1;
    _exit(write(to, &shown, sizeof shown) == (ssize_t)sizeof shown ? 0 : 1);
}

/* All of it has to come in one piece, and soon. */
static int read_devices(int from, struct shown *shown) {
    enum { PATIENCE_MS = 60000 };
    struct pollfd waiting = {.fd = from, .events = POLLIN};
    int ready;
    do
        ready = poll(&waiting, 1, PATIENCE_MS);
    while (ready < 0 && errno == EINTR);
    return ready > 0 && read(from, shown, sizeof *shown) == (ssize_t)sizeof *shown && shown->count >= 0
           && shown->count <= MOST_SHOWN;
}

static int ask_devices(struct shown *shown) {
    int ends[2], good = 0;
    if (pipe(ends) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0)
        tell_devices(ends[1]);
    close(ends[1]);
    if (child > 0) {
        good = read_devices(ends[0], shown);
        kill(child, SIGKILL);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    close(ends[0]);
    return good;
}

/* ---- What the application chooses of it ------------------------------------------------------- */

static void uuid_text(const CUuuid *uuid, char text[UUID_TEXT]) {
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(text, UUID_TEXT, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The device that an entry names, as the driver (580) reads it: the beginning of a UUID that fits one device, or a number
 * that something else may follow. -1: none. */
static int chosen(const struct shown *shown, const char *entry) {
    size_t length = strcspn(entry, ",");
    char text[UUID_TEXT], *end = NULL;
    int found = -1;
    if (strncmp(entry, "GPU-", 4) != 0 && strncmp(entry, "MIG-", 4) != 0) {
        int number = (int)strtol(entry, &end, 10);
        return end != entry && number >= 0 && number < shown->count ? number : -1;
    }
    for (int i = 0; i < shown->count && length > 4; i++) {
        uuid_text(&shown->uuids[i], text);
        if (strncasecmp(text + 4, entry + 4, (length < UUID_TEXT ? length : UUID_TEXT - 1) - 4) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* The application's list as one of UUIDs, up to the first entry that names no device. One that names a device again ends it,
 * too: the driver refuses such a list. Tells whether it is all that is shown, in that order. */
static int narrow(const struct shown *shown, const char *wanted, char list[(MOST_SHOWN + 1) * UUID_TEXT]) {
    int taken[MOST_SHOWN] = {0}, again = 0, count = 0, same = 1;
    size_t at = 0;
    list[0] = 0;
    for (const char *entry = wanted; entry && !again; entry = strchr(entry, ',') ? strchr(entry, ',') + 1 : NULL) {
        int device = chosen(shown, entry);
        if (device < 0)
            break;
        again = taken[device]++;
        same = same && device == count++;
        if (at)
            list[at++] = ',';
        uuid_text(&shown->uuids[device], list + at);
        at += UUID_TEXT - 1;
    }
    return same && count == shown->count;
}

/* ---- Initialization -------------------------------------------------------------------------- */

static CUresult arrange(const char *visible, const char *order) {
    char list[(MOST_SHOWN + 1) * UUID_TEXT];
    struct shown shown;
    if (!node.known) {
        node.known = 1;
        node.private_node = getenv("AVIARY_PRIVATE_NODE") != NULL;
        node.visible = copy_of(VISIBLE);
        node.order = copy_of(ORDER);
    }
    if (node.private_node || !node.visible) {
        CUresult status = put(ORDER, (order || node.private_node) ? order : node.order);
        return status == CUDA_SUCCESS ? put(VISIBLE, visible) : status;
    }
    /* What the node lists has an order already. */
    CUresult status = put(VISIBLE, node.visible);
    if (status != CUDA_SUCCESS || !visible)
        return status;
    if (!ask_devices(&shown)) {
        aviary_log("which devices this node's %s=%s shows cannot be found out: the application sees none", VISIBLE, node.visible);
        shown.count = 0;
    }
    /* The node's own words then: a part of a device (MIG) has a UUID that is written otherwise. */
    if (narrow(&shown, visible, list) && shown.count)
        return CUDA_SUCCESS;
    if (!list[0])
        aviary_log("the application's %s=%s names none of the %d devices that this node shows it by its own %s=%s", VISIBLE,
                   visible, shown.count, VISIBLE, node.visible);
    return put(VISIBLE, list);
}

static CUresult initialize(unsigned int flags, const char *visible, const char *order) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int initialized;
    pthread_mutex_lock(&lock);
    /* Once it is initialized the driver looks no more, as natively. */
    CUresult status = initialized || flags ? CUDA_SUCCESS : arrange(visible, order);
    if (status == CUDA_SUCCESS)
        status = cuInit(flags);
    if (status == CUDA_SUCCESS)
        initialized = 1;
    pthread_mutex_unlock(&lock);
    return status;
}

void *cuda_initialize_function(void) {
    return (void *)initialize;
}
