/*
 * testapi: a small accelerator library of our own. It computes nothing of
 * value; it exists so that every descriptor of the LAPIS language is used by a
 * real C library whose results are known exactly.
 */
#ifndef TESTAPI_H
#define TESTAPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TA_VERSION_MAJOR 1
#define TA_VERSION_MINOR 0

typedef int32_t ta_status;

enum {
    TA_OK = 0,
    TA_INVALID_VALUE = -1,
    TA_INVALID_DEVICE = -2,
    TA_INVALID_BUFFER = -3,
    TA_OUT_OF_MEMORY = -7,
    TA_UNSUPPORTED = -8,
    TA_DEVICE_LOST = -9,
    TA_REFUSED = -10,
};

typedef struct ta_device_st *ta_device;
typedef struct ta_buffer_st *ta_buffer;

/* --- calls without data ------------------------------------------------ */

ta_status ta_noop(void);
/* Counts itself; see ta_noop_count. */
ta_status ta_noop_async(void);
uint64_t ta_noop_count(void);
int32_t ta_add(int32_t a, int32_t b);
const char *ta_version(void);

/* --- devices and their memory ------------------------------------------ */

ta_status ta_device_open(const char *name, ta_device *device);
ta_status ta_device_close(ta_device device);

ta_status ta_buffer_create(ta_device device, size_t bytes, ta_buffer *buffer);
ta_status ta_buffer_destroy(ta_buffer buffer);
ta_status ta_buffer_write(ta_buffer buffer, size_t offset, size_t bytes, const void *from);
ta_status ta_buffer_read(ta_buffer buffer, size_t offset, size_t bytes, void *to);
/* May run after it returned; later calls see its effect. */
ta_status ta_buffer_fill(ta_buffer buffer, uint8_t value);

#ifdef __cplusplus
}
#endif

#endif
