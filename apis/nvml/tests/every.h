/* Calls of all functions, which functions.py writes. */
#pragma once
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>

/* One piece of memory for each pointer of a call, the last one for a list in a structure. */
extern unsigned char room[8][1 << 16];
extern nvmlDevice_t device;
extern nvmlEventSet_t set;
extern nvmlGpmSample_t sample;
extern nvmlUnit_t other_nvmlUnit_t;
extern nvmlGpuInstance_t other_nvmlGpuInstance_t;
extern nvmlComputeInstance_t other_nvmlComputeInstance_t;

void clear_room(void);
/* Handles: two processes have other numbers for the same object. */
void hide_objects(unsigned char *list);
/* One line: name, result, what was written. */
void report(const char *name, nvmlReturn_t result);

#define CALL(name, before, ...)             \
    do {                                    \
        clear_room();                       \
        before report(#name, name(__VA_ARGS__)); \
    } while (0)
#define CALL_OBJECTS(name, before, after, ...)    \
    do {                                          \
        clear_room();                             \
        before nvmlReturn_t got = name(__VA_ARGS__); \
        after report(#name, got);                 \
    } while (0)
#define CALL0(name) report(#name, name())

void call_every_function(void);
