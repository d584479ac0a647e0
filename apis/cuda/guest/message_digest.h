/* MD2 (RFC 1319) and HMAC (RFC 2104) over it: the checksum of one export table. Not for security. */
#ifndef AVIARY_CUDA_MESSAGE_DIGEST_H
#define AVIARY_CUDA_MESSAGE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_SIZE 16

void digest_md2(const uint8_t *text, size_t size, uint8_t digest[DIGEST_SIZE]);
/* 0, or -1 where memory is out. */
int digest_hmac_md2(const uint8_t key[DIGEST_SIZE], const uint8_t *text, size_t size, uint8_t digest[DIGEST_SIZE]);

#endif
