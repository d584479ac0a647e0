/* Computes on a device, one round for each line of its standard input, and prints the sum of each round's bytes: small
 * calls, calls that nobody waits for, and two copies of 4 MiB. Without input it ends. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "testapi.h"

#define BYTES ((size_t)4 << 20)

int main(void) {
    static uint8_t written[BYTES], read[BYTES];
    ta_device device = NULL;
    ta_buffer buffer = NULL;
    char line[16];
    if (ta_device_open("carried", &device) != TA_OK || ta_buffer_create(device, BYTES, &buffer) != TA_OK)
        return 2;
    for (unsigned round = 1; fgets(line, sizeof line, stdin) != NULL; round++) {
        uint64_t sum = 0;
        for (size_t at = 0; at < BYTES; at++)
            written[at] = (uint8_t)(at * 31 + (at >> 12) * round);
        for (int i = 0; i < 100; i++) {
            if (ta_noop_async() != TA_OK || ta_noop() != TA_OK)
                return 3;
        }
        if (ta_buffer_write(buffer, 0, BYTES, written) != TA_OK || ta_buffer_read(buffer, 0, BYTES, read) != TA_OK)
            return 4;
        for (size_t at = 0; at < BYTES; at++)
            sum = sum * 31 + read[at];
        printf("round %u: %016llx\n", round, (unsigned long long)sum);
        fflush(stdout);
    }
    return ta_device_close(device) == TA_OK ? 0 : 5;
}
