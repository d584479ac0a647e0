/* Copies of lengths around those at which a copy travels in parts, of random data, there and back. Prints `equal`. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testapi.h"

#define MIB ((size_t)1 << 20)
#define KIB ((size_t)1 << 10)

int main(void) {
    /* 1,120 KiB is a part of an input, 4,480 KiB one of an output. */
    const size_t lengths[] = {1, 2240 * KIB - 1, 2240 * KIB, 2240 * KIB + 1, 8960 * KIB - 1, 8960 * KIB, 8960 * KIB + 1, 24 * MIB + 13};
    const size_t largest = 24 * MIB + 13, before = 5;
    uint8_t *from = malloc(largest + 8), *to = malloc(largest);
    uint64_t state = 88172645463325252u;
    ta_device device;
    ta_buffer buffer;
    if (!from || !to || ta_device_open("lengths", &device) != TA_OK || ta_buffer_create(device, before + largest, &buffer) != TA_OK)
        return 2;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t bytes = lengths[i];
        for (size_t at = 0; at < bytes; at += sizeof state) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            memcpy(from + at, &state, sizeof state);
        }
        memset(to, 0, largest);
        if (ta_buffer_write(buffer, before, bytes, from) != TA_OK || ta_buffer_read(buffer, before, bytes, to) != TA_OK)
            return 3;
        if (memcmp(from, to, bytes) || (bytes < largest && to[bytes])) {
            printf("%zu bytes differ\n", bytes);
            return 1;
        }
        /* What fails leaves the program's memory as it is. */
        memset(to, 7, largest);
        if (ta_buffer_read(buffer, before + 1, largest, to) == TA_OK || to[0] != 7 || memcmp(to, to + 1, largest - 1)) {
            printf("a read beyond the end has changed something\n");
            return 1;
        }
    }
    printf("equal\n");
    return 0;
}
