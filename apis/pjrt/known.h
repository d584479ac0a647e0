/* What the files of the guest have in common. */
#pragma once
#include <pjrt_c_api.h>
#include <stdint.h>

/* Errors of the guest's own: the fixed ones, and one with a copy of this text. */
PJRT_Error *made(uint32_t number);
PJRT_Error *error_of(PJRT_Error_Code code, const char *text);

/* So many runs, with consecutive numbers, of which the first is answered; 0: the API server is gone, or there is no memory. `causes`: runs
 * that have made what they need. */
uint64_t begin_runs(uint64_t count, const uint64_t *causes, uint64_t cause_count);
/* The API server has not heard of them. */
void end_runs(uint64_t first, uint64_t count);
/* An event that shows the run of this number; one that is ready where there is none. NULL: there is no memory. */
PJRT_Event *event_of(uint64_t run);
/* A run of the guest's own, and an event that shows it; 0: there is no memory. */
uint64_t own_event(PJRT_Event **event);
/* The guest's own run is over, with this error or without one. The error ends. */
void finish_run(uint64_t run, PJRT_Error *error);
int is_gone(void);
/* The execution that was to make the buffer has failed. */
int was_never_made(PJRT_Buffer *buffer);
