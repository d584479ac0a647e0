/* Waiting for the device, and what is done meanwhile: large copies, and what kernels print. */
#ifndef AVIARY_CUDA_WAITING_H
#define AVIARY_CUDA_WAITING_H
#include "guest/ranges.h"

/* parallel_copy.c */
int cuda_gather_helpers(size_t bytes);
void cuda_dismiss_helpers(void);
void cuda_copy_together(char *to, const char *from, size_t bytes, int streamed);

/* idle.c */
cuuint64_t cuda_calls(void);
void cuda_note_over(CUstream stream, int whole, cuuint64_t before);

/* event.c */
void cuda_note_shared_event(CUevent event);

/* completion_polling.c */
void cuda_settled(CUresult result);
CUresult cuda_before_kernels(void);
CUresult cuda_await_stream(CUstream stream, uint32_t *word, uint32_t *expected, size_t bytes);

/* printing.c */
void cuda_note_new_kernels(void);
int cuda_kernels_are_silent(void);
void cuda_ask_whether_kernels_print(void);
int cuda_flush_output(void);

#endif
