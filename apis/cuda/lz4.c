#include "lz4.h"
#include <string.h>

/* Literals, then a match some bytes back, until the input ends. */
int cuda_unpack_lz4(const uint8_t *from, size_t from_size, char *to, size_t to_size) {
    const uint8_t *end = from + from_size;
    size_t written = 0;
    while (from < end) {
        unsigned token = *from++, more;
        size_t literals = token >> 4, match = (token & 15) + 4, back;
        if (literals == 15)
            do {
                if (from == end)
                    return 0;
                literals += more = *from++;
            } while (more == 255);
        if (literals > (size_t)(end - from) || literals > to_size - written)
            return 0;
        memcpy(to + written, from, literals);
        from += literals;
        written += literals;
        if (from == end)
            break;
        if (end - from < 2)
            return 0;
        back = from[0] | (size_t)from[1] << 8;
        from += 2;
        if (match == 19)
            do {
                if (from == end)
                    return 0;
                match += more = *from++;
            } while (more == 255);
        if (!back || back > written || match > to_size - written)
            return 0;
        for (; match; match--, written++)
            to[written] = to[written - back];
    }
    return written == to_size;
}
