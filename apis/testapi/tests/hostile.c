/* hostile SEED: attaches like any guest, then writes garbage over the memory that it shares with the API server
 * while it goes on calling. What becomes of this process does not matter; the node and all others must not care. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

#define PAGE 4096
#define PAGES 65536

static unsigned char *pages[PAGES];
static size_t page_count;
static uint64_t seed;

static uint64_t random_word(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Pages of shared mappings that hold something: rings, staging blocks. */
static void find_shared_pages(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char permissions[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, permissions) != 3)
            continue;
        if (permissions[1] != 'w' || permissions[3] != 's')
            continue;
        for (unsigned long at = start; at < end && page_count < PAGES; at += PAGE) {
            unsigned char present = 0;
            if (mincore((void *)at, PAGE, &present) == 0 && (present & 1))
                pages[page_count++] = (unsigned char *)at;
        }
    }
    if (maps)
        fclose(maps);
}

static void *scribble(void *unused) {
    (void)unused;
    static const uint64_t tempting[] = {0, 1, 7, 0xff, 0xffff, 0xffffffff, UINT64_MAX, INT64_MAX, 1ull << 40};
    for (;;) {
        uint64_t choice = random_word();
        unsigned char *at = pages[choice % page_count] + (random_word() % (PAGE / 8)) * 8;
        uint64_t word = random_word() % 3 ? tempting[random_word() % 9] : random_word();
        if (random_word() % 2)
            *(volatile uint64_t *)at = word;
        else
            *(volatile uint32_t *)at = (uint32_t)word;
        if (choice % 64 == 0)
            usleep(50);
    }
    return NULL;
}

int main(int argc, char **argv) {
    static unsigned char data[100000];
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    pthread_t thread;
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15 + 1 : 1;
    ta_device_open("hostile", &device);
    ta_buffer_create(device, sizeof data, &buffer);
    ta_buffer_write(buffer, 0, sizeof data, data);
    find_shared_pages();
    printf("%zu shared pages\n", page_count);
    fflush(stdout);
    if (page_count == 0)
        return 0;
    alarm(1); /* this process may wait for ever for what it destroyed itself */
    pthread_create(&thread, NULL, scribble, NULL);
    for (int i = 0; i < 2000; i++) {
        char text[64];
        ta_add(i, 1);
        ta_noop_async();
        ta_buffer_write(buffer, 0, sizeof data, data);
        ta_buffer_read(buffer, 0, 5000, data);
        ta_upper("some text", text, sizeof text);
        ta_buffer_fill(buffer, 1);
    }
    return 0;
}
