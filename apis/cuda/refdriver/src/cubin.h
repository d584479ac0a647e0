/* Machine code (an ELF file, "cubin"): what can be known of its kernels and variables without being able to run it. */
#ifndef REFDRIVER_CUBIN_H
#define REFDRIVER_CUBIN_H

#include "ptx.h"

/* Bytes of an ELF file that lies at an address of unknown extent; 0 where it is none of 64 bits. */
size_t cubin_size(const void *image);
/* Kernels without instructions, and variables with what they begin with; without `allocate` no variables. NULL where
 * the file is wrong: then `message` says why. */
struct ptx_program *cubin_parse(const char *file, size_t size, ptx_allocate allocate, void *environment, char message[200]);

#endif
