/* Layouts of functions' parameters, as each side remembers them (layout.c). */
#ifndef CUDA_LAYOUT_H
#define CUDA_LAYOUT_H

#include "cuda_types.h"

/* The layout of a function's parameters; NULL: the driver does not tell it. Valid for ever. */
const struct cuda_layout *cuda_layout_of(CUfunction function);

#ifdef AVIARY_SERVER
/* The driver's own answer, in the form of the message. */
CUresult cuda_function_layout(CUfunction function, unsigned int capacity, unsigned int *count, unsigned short *offsets,
                              unsigned short *sizes);
#endif

#endif
