/* The one function that a PJRT plug-in exports, and some of our own. */
#pragma once
#include <pjrt_c_api.h>

const PJRT_Api *GetPjrtApi(void);

/* An object that a call has handed out together with a function that ends it. Guests end it by this. */
typedef struct PJRT_Handed PJRT_Handed;
void aviary_pjrt_end(PJRT_Handed *handed);

/* Runs: what the program waits for, by numbers that the guest chooses. Each is over once.
 * Executes on so many devices; the run of the first one has this number. All lists are one behind the other. */
void aviary_pjrt_execute(uint64_t run, size_t num_devices, PJRT_LoadedExecutable *executable, const PJRT_ExecuteOptions *options,
                         PJRT_Buffer *const *inputs, size_t num_args, PJRT_Buffer **outputs, PJRT_Device *device);
/* The run is over when the buffer is ready. */
void aviary_pjrt_watch(uint64_t run, PJRT_Buffer *buffer);
enum { AVIARY_PJRT_PENDING, AVIARY_PJRT_DONE, AVIARY_PJRT_FAILED };
/* How a run is; `wait`: when it is over. */
int aviary_pjrt_ask(uint64_t run, int wait, int *state);
/* What functions of the table ask of a buffer. */
struct PJRT_Layouts_MemoryLayout;
PJRT_Error *aviary_pjrt_layout(PJRT_Buffer *buffer, struct PJRT_Layouts_MemoryLayout **layout);
PJRT_Error *aviary_pjrt_deleted(PJRT_Buffer *buffer, _Bool *deleted);
PJRT_Error *aviary_pjrt_dynamic(PJRT_Buffer *buffer, const size_t **indices, size_t *count);
/* Waits for runs that are over. `code`: 0, the error's, or AVIARY_PJRT_REFUSED; `text`: where in `texts` the error's is. */
enum { AVIARY_PJRT_REFUSED = -1 };
struct aviary_pjrt_done {
  uint64_t run;
  int32_t code;
  uint32_t text;
};
int aviary_pjrt_completed(struct aviary_pjrt_done *done, size_t room, size_t *count, char *texts, size_t texts_room, size_t *used);
