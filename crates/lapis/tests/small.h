#ifndef SMALL_H
#define SMALL_H
#include <stddef.h>

typedef int sm_status;
typedef struct sm_device_st *sm_device;
typedef struct sm_buffer_st *sm_buffer;
typedef void (*sm_notify)(sm_buffer buffer, int status, void *context);

#define SM_OK 0
#define SM_REFUSED (-1)
#define SM_GONE ((sm_status)0xfffffffe)
#define SM_BIT(n) (1u << (n))
#define SM_FLAG SM_BIT(4)

typedef struct {
    sm_device device;
    size_t count;
    const int *values;
    union {
        sm_buffer buffers[2];
        sm_buffer first;
    };
} sm_batch;

sm_status sm_open_v2(const char *name, sm_device *device);
#define sm_open sm_open_v2
sm_status sm_close(sm_device device);
sm_status sm_create(sm_device device, size_t bytes, sm_buffer *buffer);
sm_status sm_destroy(sm_buffer buffer);
sm_status sm_write(sm_buffer buffer, const void *from, size_t bytes);
sm_status sm_read(sm_buffer buffer, void *to, size_t bytes, size_t *done);
sm_status sm_run(sm_device device, const sm_batch *batches, size_t count);
sm_status sm_listen(sm_buffer buffer, sm_notify notify, void *context);
sm_buffer sm_find(sm_device device, sm_status *error);
void sm_hint(sm_device device, int level);
void sm_printf(const char *format, ...);
int sm_undescribed(void);

#endif
