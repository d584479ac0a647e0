/* Code of every exported function before and after its implementation. */
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

/* NULL for what is no error of the header's. */
const char *error_name(CUresult error);

/* --- trace.c --- */

/* REFCUDA_TRACE is set. */
extern bool trace_wanted;
/* Appends a line `NAME ARGUMENTS -> RESULT` to the file of REFCUDA_TRACE. */
__attribute__((format(printf, 2, 3))) void trace_call(CUresult result, const char *format, ...);
const char *trace_kernel(CUfunction function);
const char *trace_stream(CUstream stream);
/* Attributes of a launch: numbers of attributes, with their values where these are numbers. */
const char *trace_attributes(const CUlaunchConfig *config);
/* A kernel's parameters, two hexadecimal digits for each four bytes. Of an address of device memory counts what is below the
 * alignment of allocations, as that does not depend on who chose the address; of one of the process itself nothing (`~`). */
const char *trace_parameters(CUfunction function, void **parameters, void **extra);

#pragma GCC visibility pop
#endif
