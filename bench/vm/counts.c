// Cost of a guest's synchronous calls besides time: doorbells, sleeps, interrupts. Not for the clock: for exact counts.
//
//   counts CALLS IDLES      attaches and prints "ready"; after a line of input makes so many calls and prints
//                           {"kicks": ..., "sleeps": ..., "wakes": ..., "requests": ..., "interrupts": ..., "slices": ...,
//                           "clean": ...}, where clean are those slices of 200 calls with none of it;
//                           after another line makes so many calls, each after a second without any, and prints the
//                           same about those
#include "session.h"
#include "testapi.h"

#define WARM_UP 2000
#define SLICE 200

struct counts {
    struct aviary_counters session;
    uint64_t interrupts, slices, clean;
};

static void call(long times) {
    for (long i = 0; i < times; i++)
        if (ta_noop() != TA_OK) {
            fprintf(stderr, "counts: ta_noop failed\n");
            exit(1);
        }
}

// Of Aviary's device: "virtioN", by the name that its driver knows it by.
static void find_device(char *name, size_t size) {
    DIR *devices = opendir("/sys/bus/virtio/drivers/aviary");
    struct dirent *entry;
    *name = 0;
    while (devices && (entry = readdir(devices)))
        if (!strncmp(entry->d_name, "virtio", 6)) snprintf(name, size, " %s", entry->d_name);
    if (devices) closedir(devices);
}

// A line of its own ("virtio0", at the end), or one per vector ("virtio0-virtqueues").
static int names_device(const char *line, const char *device) {
    const char *found = strstr(line, device);
    return found && strchr("-,\n", found[strlen(device)]);
}

static uint64_t interrupts(void) {
    char device[300], line[1024];
    find_device(device, sizeof device);
    FILE *file = fopen("/proc/interrupts", "re");
    uint64_t sum = 0;
    int found = 0;
    while (file && *device && fgets(line, sizeof line, file)) {
        if (!names_device(line, device)) continue;
        found = 1;
        // "24:  12  0  PCI-MSI...": one number per processor.
        char *rest = strchr(line, ':'), *end;
        for (rest = rest ? rest + 1 : line;; rest = end) {
            uint64_t number = strtoull(rest, &end, 10);
            if (end == rest) break;
            sum += number;
        }
    }
    if (file) fclose(file);
    if (!found) {
        fprintf(stderr, "counts: /proc/interrupts does not name Aviary's device\n");
        exit(1);
    }
    return sum;
}

static uint64_t events_of(struct aviary_counters c) { return c.kicks + c.sleeps + c.wakes + c.requests; }

// Adds to `sum` what these calls took.
static void count(struct counts *sum, long calls, long slice) {
    uint64_t interrupts_before = interrupts();
    // Reading that took a while, in which the server fell asleep; interrupts of its wake-up are counted with the rest.
    if (slice > 1) call(WARM_UP);
    struct aviary_counters first = session_counters(), before = first;
    for (long done = 0; done < calls; done += slice) {
        call(slice);
        struct aviary_counters after = session_counters();
        sum->slices++;
        sum->clean += events_of(after) == events_of(before);
        before = after;
    }
    sum->session.kicks += before.kicks - first.kicks;
    sum->session.sleeps += before.sleeps - first.sleeps;
    sum->session.wakes += before.wakes - first.wakes;
    sum->session.requests += before.requests - first.requests;
    sum->interrupts += interrupts() - interrupts_before;
}

static void print(struct counts counts) {
    printf("{\"kicks\": %llu, \"sleeps\": %llu, \"wakes\": %llu, \"requests\": %llu, \"interrupts\": %llu, \"slices\": %llu, \"clean\": %llu}\n",
           counts.session.kicks, counts.session.sleeps, counts.session.wakes, counts.session.requests,
           (unsigned long long)counts.interrupts, (unsigned long long)counts.slices, (unsigned long long)counts.clean);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    call(WARM_UP);
    printf("ready\n");
    fflush(stdout);
    wait_for_line();
    struct counts busy = {0}, idle = {0};
    count(&busy, atol(argv[1]), SLICE);
    print(busy);
    wait_for_line();
    for (long i = 0; i < atol(argv[2]); i++) {
        sleep(1);
        count(&idle, 1, 1);
    }
    print(idle);
    return 0;
}
