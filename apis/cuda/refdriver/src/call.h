/* What every exported function does before and after its implementation. */
#ifndef REFDRIVER_CALL_H
#define REFDRIVER_CALL_H

#include <cuda.h>
#include <stdbool.h>

#pragma GCC visibility push(hidden)

enum {
    CALL_ANYTIME = 1,    /* allowed before cuInit */
    CALL_PER_THREAD = 2, /* stream 0 is the thread's own default stream */
    CALL_UNLOCKED = 4,
};

/* Takes the driver's lock, whatever it returns: call_end must follow. */
CUresult call_begin(unsigned flags);
void call_end(unsigned flags);

/* REFCUDA_TRACE is set. */
extern bool trace_wanted;
/* Appends a line `NAME ARGUMENTS -> RESULT` to the file of REFCUDA_TRACE. */
__attribute__((format(printf, 2, 3))) void trace_call(CUresult result, const char *format, ...);
const char *trace_kernel(CUfunction function);
const char *trace_stream(CUstream stream);

#pragma GCC visibility pop
#endif
