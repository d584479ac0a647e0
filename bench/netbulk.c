// Long copies of testapi through `aviary run --server`, for bench/netbulk.py, which watches the processes meanwhile:
//   netbulk MIB COUNT     for each line, `in` or `out`, makes COUNT copies of MIB of random data; prints their median in us
#include "testapi.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 0) << 20;
    long count = argc > 2 ? atol(argv[2]) : 0;
    double *times = malloc((size_t)count * sizeof *times);
    uint64_t *data = malloc(bytes), state = 88172645463325252u;
    ta_device device;
    ta_buffer buffer;
    if (count < 1 || !times || !bytes || !data) return 2;
    for (size_t i = 0; i < bytes / sizeof *data; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        data[i] = state;
    }
    if (ta_device_open("netbulk", &device) != TA_OK || ta_buffer_create(device, bytes, &buffer) != TA_OK) return 1;
    if (ta_buffer_write(buffer, 0, bytes, data) != TA_OK) return 1;
    printf("ready\n");
    fflush(stdout);
    char line[8];
    while (fgets(line, sizeof line, stdin)) {
        for (long i = 0; i < count; i++) {
            double start = (double)now();
            ta_status status = line[0] == 'i' ? ta_buffer_write(buffer, 0, bytes, data) : ta_buffer_read(buffer, 0, bytes, data);
            if (status != TA_OK) return fprintf(stderr, "netbulk: a copy failed\n"), 1;
            times[i] = ((double)now() - start) / 1e3;
        }
        qsort(times, (size_t)count, sizeof *times, by_real_value);
        printf("%.2f\n", times[count / 2]);
        fflush(stdout);
    }
}
