/* Functions that the server's utility files share. */
#pragma once
#include "nvml_types.h"
#include <stddef.h>

enum { NAME_BYTES = 64, SHOWN_NAME_BYTES = NAME_BYTES + 8 };

/* The name under which memory on the device is charged; 0: the library does not say. */
int nvml_shown_name(nvmlDevice_t device, char *shown_name, size_t bytes);

/* older.c */
nvmlReturn_t nvml_memory_info_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
