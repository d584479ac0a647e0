/* The one function that a PJRT plug-in exports, and some of our own. */
#pragma once
#include <pjrt_c_api.h>

const PJRT_Api *GetPjrtApi(void);

/* An object that a call has handed out together with a function that ends it. Guests end it by this. */
typedef struct PJRT_Handed PJRT_Handed;
void aviary_pjrt_end(PJRT_Handed *handed);

/* What the program says later: the data's place, or that something has happened. It says so by these. */
typedef struct PJRT_Promise PJRT_Promise;
PJRT_Error *aviary_pjrt_keep(PJRT_Promise *promise, PJRT_Error_Code code, const char *message, size_t size, void *dst, size_t bytes);
PJRT_Error *aviary_pjrt_depend(PJRT_Promise *promise, PJRT_Error_Code code, const char *message, size_t size);
void aviary_pjrt_drop(PJRT_Promise *promise);

/* Of a program that has a key-value store: what the plug-in asks of it, and a client whose plug-in may ask. `has`: a bit for each
 * question. The answer is 0 or an error's code. `size`: of the value, or of the error's text; where it is more than `room` there is
 * nothing in `to`. */
enum { AVIARY_PJRT_GET, AVIARY_PJRT_TRY_GET, AVIARY_PJRT_PUT };
typedef int (*aviary_pjrt_store)(int what, const char *key, size_t key_size, const char *value, size_t value_size, int timeout_in_ms,
                                 char *to, size_t room, size_t *size, void *context);
PJRT_Error *aviary_pjrt_create(const PJRT_NamedValue *options, size_t count, uint32_t has, aviary_pjrt_store store, void *context,
                               PJRT_Client **client);

/* The payloads of an error, as far as there is room: for each the sizes of its name and of its value, and both. */
struct aviary_pjrt_payload { uint64_t name_size, value_size; };
int aviary_pjrt_payloads(const PJRT_Error *error, char *to, size_t room, size_t *used);

/* Whether the client's plug-in maps host memory for DMA; the error that it has for memory that it does not map, and cannot unmap. */
PJRT_Error *aviary_pjrt_try_map(PJRT_Client *client, int is_unmapped);

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
