/* What the guest's files of this API know of each other. */
#ifndef AVIARY_CUDA_GUEST_H
#define AVIARY_CUDA_GUEST_H
#include "messages.h"
#include <stddef.h>

/* context.c */
struct cuda_object *cuda_object_of(const void *handle);
CUcontext cuda_current_context(void);
int cuda_current_ordinal(void);

/* ranges.c */
int cuda_is_device_address(CUdeviceptr pointer);
void cuda_note_host(void *memory, size_t bytes, unsigned int flags, int owned);
int cuda_take_host(void *memory, int owned, size_t *bytes);
void cuda_forget_device_ranges(CUdevice device);

/* function_state.c */
void cuda_context_ended(void);

/* capture.c */
int cuda_capturing(void);

/* launch.c */
int cuda_is_stream(CUstream stream);
CUresult cuda_launch_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);

#endif
