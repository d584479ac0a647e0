/* Which devices an application sees: the driver reads CUDA_VISIBLE_DEVICES when it is initialized, and here that is the
 * application's, not this process's. Where the node has a list of its own, or the tenant may use some devices only, the
 * application's counts among the devices that are left: it can choose and order them, and get no other. */
#include "server.h"
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

/* The value in the node's own environment. */
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
    char names[MOST_SHOWN][ORDINAL_NAME_BYTES + 8];
};

/* In a process of its own, since a driver reads the list once. */
static void tell_devices(int to) {
    struct shown shown = {0};
    int count = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS)
        for (CUdevice device = 0; device < count && device < MOST_SHOWN; device++)
            if (cuDeviceGetUuid_v2(&shown.uuids[device], device) == CUDA_SUCCESS) {
                const char *name = cuda_ordinal_name(cuda_ordinal_of_device(device), 0);
                snprintf(shown.names[device], sizeof shown.names[0], "%s", name ? name : "unknown");
                shown.count = device + 1;
            }
    _exit(write(to, &shown, sizeof shown) == (ssize_t)sizeof shown ? 0 : 1);
}

/* Each piece of it has to come soon. */
static int read_devices(int from, struct shown *shown) {
    enum { PATIENCE_MS = 60000 };
    struct pollfd waiting = {.fd = from, .events = POLLIN};
    size_t got = 0;
    while (got < sizeof *shown) {
        int ready = poll(&waiting, 1, PATIENCE_MS);
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t piece = ready > 0 ? read(from, (char *)shown + got, sizeof *shown - got) : 0;
        if (piece <= 0)
            return 0;
        got += (size_t)piece;
    }
    return shown->count >= 0 && shown->count <= MOST_SHOWN;
}

struct question {
    pid_t child;
    int from;
};

static int begin_to_ask(struct question *question) {
    int ends[2];
    if (pipe(ends) != 0)
        return 0;
    *question = (struct question){fork(), ends[0]};
    if (question->child == 0)
        tell_devices(ends[1]);
    close(ends[1]);
    if (question->child < 0)
        close(ends[0]);
    return question->child > 0;
}

/* The names of the devices among all of them are used from now on. */
static int hear_devices(const struct question *question, struct shown *shown) {
    int good = read_devices(question->from, shown);
    for (int i = 0; good && i < shown->count; i++)
        cuda_set_shown_name(&shown->uuids[i], shown->names[i]);
    kill(question->child, SIGKILL);
    while (waitpid(question->child, NULL, 0) < 0 && errno == EINTR) {
    }
    close(question->from);
    return good;
}

static int ask_devices(struct shown *shown) {
    struct question question;
    return begin_to_ask(&question) && hear_devices(&question, shown);
}

/* Leaves the tenant's devices, and tells whether all are. */
static int keep_the_tenants(struct shown *shown) {
    int kept = 0, all = shown->count;
    for (int i = 0; i < all; i++) {
        if (!aviary_may_use(shown->names[i]))
            continue;
        shown->uuids[kept] = shown->uuids[i];
        memmove(shown->names[kept++], shown->names[i], sizeof shown->names[0]);
    }
    shown->count = kept;
    return kept == all;
}

/* ---- What the application chooses of it ------------------------------------------------------- */

/* A part of a device (MIG) says so in its name, and its UUID is written otherwise. */
static void uuid_text(const struct shown *shown, int device, char text[UUID_TEXT]) {
    const unsigned char *b = (const unsigned char *)shown->uuids[device].bytes;
    snprintf(text, UUID_TEXT, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             strstr(shown->names[device], " MIG ") ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9],
             b[10], b[11], b[12], b[13], b[14], b[15]);
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
        uuid_text(shown, i, text);
        if (strncasecmp(text + 4, entry + 4, (length < UUID_TEXT ? length : UUID_TEXT - 1) - 4) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static size_t append(const struct shown *shown, int device, char *list, size_t at) {
    if (at)
        list[at++] = ',';
    uuid_text(shown, device, list + at);
    return at + UUID_TEXT - 1;
}

/* The application's list as one of UUIDs, up to the first entry that names no device; without a list it is all that is shown.
 * One that names a device again ends it, too: the driver refuses such a list. Tells whether it is all that is shown, in that
 * order. */
static int narrow(const struct shown *shown, const char *wanted, char list[(MOST_SHOWN + 1) * UUID_TEXT]) {
    int taken[MOST_SHOWN] = {0}, again = 0, count = 0, same = 1;
    size_t at = 0;
    list[0] = 0;
    while (!wanted && count < shown->count)
        at = append(shown, count++, list, at);
    for (const char *entry = wanted; entry && !again; entry = strchr(entry, ',') ? strchr(entry, ',') + 1 : NULL) {
        int device = chosen(shown, entry);
        if (device < 0)
            break;
        again = taken[device]++;
        same = same && device == count++;
        at = append(shown, device, list, at);
    }
    return same && count == shown->count;
}

/* ---- Initialization -------------------------------------------------------------------------- */

/* The driver may be initialized while the names are found out: limits and schedulers go by those that devices have among
 * all, not by those that an application's own choice and order would give them. */
static CUresult initialize_with_names(const char *visible, const char *order) {
    struct question question;
    struct shown shown;
    int asked = begin_to_ask(&question);
    CUresult status = put(ORDER, order);
    if (status == CUDA_SUCCESS)
        status = put(VISIBLE, visible);
    if (status == CUDA_SUCCESS)
        status = cuInit(0);
    if (!asked || !hear_devices(&question, &shown)) {
        /* No application may use a device by another's name. */
        aviary_log("which devices this node has cannot be found out: the API server ends");
        _exit(1);
    }
    return status;
}

static void know_the_node(void) {
    if (node.known)
        return;
    node.known = 1;
    node.private_node = aviary_is_private_node();
    node.visible = copy_of(VISIBLE);
    node.order = copy_of(ORDER);
}

static CUresult arrange(const char *visible, const char *order) {
    char list[(MOST_SHOWN + 1) * UUID_TEXT];
    struct shown shown;
    const char *nodes = node.private_node ? NULL : node.visible;
    int all = aviary_may_use(NULL);
    if (all && !nodes) {
        CUresult status = put(ORDER, (order || node.private_node) ? order : node.order);
        return status == CUDA_SUCCESS ? put(VISIBLE, visible) : status;
    }
    /* Numbers are places in the node's order: what it lists has one already. */
    CUresult status = put(VISIBLE, nodes);
    if (status == CUDA_SUCCESS && !nodes)
        status = put(ORDER, node.order);
    if (status != CUDA_SUCCESS || (all && !visible))
        return status;
    if (!ask_devices(&shown)) {
        aviary_log("which devices this node shows cannot be found out: the application sees none");
        return put(VISIBLE, "");
    }
    all = keep_the_tenants(&shown);
    /* The node's own words then, where it has some; but where its devices were not found, they stay hidden. */
    if (narrow(&shown, visible, list) && all && shown.count)
        return CUDA_SUCCESS;
    if (!shown.count)
        aviary_log("none of the devices that this node shows are the application's tenant's: it sees none");
    else if (!list[0])
        aviary_log("the application's %s=%s names none of the %d devices that this node shows it", VISIBLE, visible, shown.count);
    return put(VISIBLE, list);
}

static CUresult initialize(unsigned int flags, const char *visible, const char *order) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int initialized;
    pthread_mutex_lock(&lock);
    know_the_node();
    int all = aviary_may_use(NULL);
    CUresult status = CUDA_SUCCESS;
    if (!initialized && all && !flags && !node.private_node && !node.visible && (visible || order)) {
        status = initialize_with_names(visible, order ? order : node.order);
    } else {
        /* Once it is initialized the driver looks no more, as natively. */
        if (!initialized && (!flags || !all))
            status = arrange(visible, order);
        if (status == CUDA_SUCCESS)
            status = cuInit(flags);
    }
    if (status == CUDA_SUCCESS)
        initialized = 1;
    pthread_mutex_unlock(&lock);
    return status;
}

void *cuda_initialize_function(void) {
    return (void *)initialize;
}
