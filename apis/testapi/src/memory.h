/* The memory of the library's devices. With TESTAPI_MEMORY=FILE:BYTES all processes that name the file have so many bytes
 * together, as those have that share a card; what a process that dies has is free again. With TESTAPI_KEEPS=1 what leaves stays where
 * it is, untold, as in an API server that its tenant has taken over. */
#ifndef TESTAPI_MEMORY_H
#define TESTAPI_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed; NULL: there is not so much. */
void *memory_new(size_t bytes);
void memory_end(void *at, size_t bytes);
/* The bytes are not there until they have returned, to the same address: whoever touches them meanwhile dies of it, or finds
 * nonsense where they are few. */
void memory_leave(void *at, size_t bytes);
/* False: there is not so much. */
bool memory_return(void *at, size_t bytes);
/* Calls `tell` for each other process that has opened the memory, with its number as this process sees it. */
void ta_memory_holders(void (*tell)(void *context, uint64_t process, uint64_t bytes), void *context);

#endif
