#include "guest/message_digest.h"

#include <stdlib.h>
#include <string.h>

/* The permutation of RFC 1319, made from the digits of pi. */
static const uint8_t permutation[256] = {
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19,
    98, 167, 5, 243, 192, 199, 115, 140, 152, 147, 43, 217, 188, 76, 130, 202,
    30, 155, 87, 60, 253, 212, 224, 22, 103, 66, 111, 24, 138, 23, 229, 18,
    190, 78, 196, 214, 218, 158, 222, 73, 160, 251, 245, 142, 187, 47, 238, 122,
    169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34, 95, 33,
    128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3,
    255, 25, 48, 179, 72, 165, 181, 209, 215, 94, 146, 42, 172, 86, 170, 198,
    79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4, 241,
    69, 157, 112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2,
    27, 96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105, 52, 64, 126, 15,
    85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234, 38,
    44, 83, 13, 110, 133, 40, 132, 9, 211, 223, 205, 244, 65, 129, 77, 82,
    106, 220, 55, 200, 108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74,
    120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57,
    242, 239, 183, 14, 102, 88, 208, 228, 166, 119, 114, 248, 235, 117, 75, 10,
    49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51, 159, 17, 131, 20,
};

static void absorb(uint8_t state[48], uint8_t checksum[16], const uint8_t block[16])
{
    uint8_t last = checksum[15];
    unsigned value = 0;

    for (unsigned i = 0; i < 16; i++) {
        checksum[i] ^= permutation[block[i] ^ last];
        last = checksum[i];
    }
    for (unsigned i = 0; i < 16; i++) {
        state[16 + i] = block[i];
        state[32 + i] = state[16 + i] ^ state[i];
    }
    for (unsigned round = 0; round < 18; round++) {
        for (unsigned i = 0; i < 48; i++)
            value = state[i] ^= permutation[value];
        value = (value + round) & 0xff;
    }
}

void digest_md2(const uint8_t *text, size_t size, uint8_t digest[DIGEST_SIZE])
{
    uint8_t state[48] = {0}, checksum[16] = {0}, block[16];
    size_t whole = size / 16 * 16, rest = size - whole;

    for (size_t i = 0; i < whole; i += 16)
        absorb(state, checksum, text + i);
    if (rest)
        memcpy(block, text + whole, rest);
    memset(block + rest, (int)(16 - rest), 16 - rest);
    absorb(state, checksum, block);
    memcpy(block, checksum, 16);
    absorb(state, checksum, block);
    memcpy(digest, state, DIGEST_SIZE);
}

int digest_hmac_md2(const uint8_t key[DIGEST_SIZE], const uint8_t *text, size_t size, uint8_t digest[DIGEST_SIZE])
{
    uint8_t outer[2 * DIGEST_SIZE];
    uint8_t *inner = malloc(DIGEST_SIZE + size);

    if (!inner)
        return -1;
    for (unsigned i = 0; i < DIGEST_SIZE; i++) {
        inner[i] = key[i] ^ 0x36;
        outer[i] = key[i] ^ 0x5c;
    }
    memcpy(inner + DIGEST_SIZE, text, size);
    digest_md2(inner, DIGEST_SIZE + size, outer + DIGEST_SIZE);
    digest_md2(outer, sizeof(outer), digest);
    free(inner);
    return 0;
}
