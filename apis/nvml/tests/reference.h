/* Declarations for the reference library's functions: those of vendor.c and those that functions.py writes. */
#pragma once
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stddef.h>

/* True between nvmlInit and nvmlShutdown. */
int reference_started(void);
/* Bytes that are the same for the same name. */
void reference_fill(const char *name, void *to, size_t bytes);
/* The name as text; 0 if it does not fit. */
int reference_text(const char *name, char *to, unsigned int length);
/* The protocol of lists: `count` has the room, and gets 3; 0 if the list is too small. */
int reference_fits(unsigned int *count, const void *list);
/* An object of any kind, by its number. */
void *reference_handle(int number);
/* A structure with pointers in it that only vendor.c could fill stays as it is. */
static inline void reference_has_pointers(const void *structure) {
    (void)structure;
}
