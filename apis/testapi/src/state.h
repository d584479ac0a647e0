/* The library's own values, beside objects. */
#ifndef TESTAPI_STATE_H
#define TESTAPI_STATE_H

#include <stdatomic.h>
#include <stddef.h>

#include "testapi.h"

#define TRAIL 65536

extern _Atomic uint64_t library_noops, library_reserved, library_last_work, library_units_runs;
extern _Atomic int32_t library_level;
/* Callbacks that were posted. */
extern uint32_t library_posts;

/* Plain on purpose: only the order of calls makes their values right. */
extern volatile uint64_t library_mark, library_baton, library_disorder;

extern uint32_t library_trail[TRAIL];
extern size_t library_trail_length;

/* Boards that were made, and the last thing done to one. */
extern uint32_t library_boards;
extern char library_told[32];

/* Not in the header: for the code that saves the library's state. They answer how many bytes were written, and 0 if all
 * were read. */
size_t ta_library_save(size_t offset, void *to, size_t capacity);
int ta_library_load(size_t offset, const void *from, size_t bytes);
size_t ta_board_save(ta_board board, size_t offset, void *to, size_t capacity);
int ta_board_load(ta_board board, size_t offset, const void *from, size_t bytes);
/* Bytes of device memory that a buffer can do without for a while; 0: none. */
size_t ta_buffer_evictable(ta_buffer buffer);
/* Copies the content there, and gives the device memory back: it must not be touched until it has returned, to the same
 * address. They answer 0 if they did it. */
/* True if the buffer has this content. */
int ta_buffer_equals(ta_buffer buffer, const void *content, size_t bytes);
/* `to`: NULL if the content is there already. */
int ta_buffer_evict(ta_buffer buffer, void *to, size_t bytes);
int ta_buffer_return(ta_buffer buffer, const void *from, size_t bytes);
/* Not 0: some stream has not yet done what it was given. */
int ta_streams_busy(void);
/* A report with a text of its own. */
ta_report ta_report_make(int32_t code, const char *text);

#endif
