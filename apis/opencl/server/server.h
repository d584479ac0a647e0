/* Declarations that the server's files share. */
#ifndef OPENCL_SERVER_H
#define OPENCL_SERVER_H

#include "opencl_types.h"
#include "sizes.h"
#include <aviary/server.h>
#include <time.h>

/* drain.c */
/* The device that the queue's commands occupy; 0: there is no such queue. */
uint64_t opencl_device(cl_command_queue queue);
/* Lets go of queues whose work is known to be done. */
void opencl_let_go_reached(void);

/* devices.c */
/* Under which name limits name the device; NULL: its runtime does not say. Remembered for as long as the process lives. */
const char *opencl_device_name(uint64_t token);

/* checks.c */
/* The address of a function that the runtime of the object's platform does not export; NULL: it has none. */
void *opencl_context_function(cl_context context, const char *name);
void *opencl_queue_function(cl_command_queue queue, const char *name);

/* references.c */
/* A queue that this server holds, and its context. */
struct opencl_held_queue {
    cl_command_queue queue;
    cl_context context;
};
/* 0: the vendor refuses. References that are held here do not show in the counts that the application is told. */
int opencl_hold_queue(cl_command_queue queue, struct opencl_held_queue *held);
void opencl_let_go_queue(struct opencl_held_queue held);
/* How many of an event's references are held here. */
cl_uint opencl_own_references(cl_event event);
cl_int opencl_context_references(cl_context context, size_t size, void *value, size_t *size_ret);
/* A reference to an event that the application is not told of. */
void opencl_hold_event(cl_event event);
void opencl_let_go_event(cl_event event);
/* Whether the application has made a user event and not set it yet: commands behind it may fail. */
int opencl_has_unset_events(void);
/* Commands of this server's own may be put into the application's queues until `opencl_end_own_commands`, as none of them can fail
 * because of a user event; 0: not now, and there is nothing to end. */
int opencl_begin_own_commands(void);
void opencl_end_own_commands(void);
/* A marker behind all that the queue has. CL_INVALID_OPERATION: not now. */
cl_int opencl_enqueue_own_marker(cl_command_queue queue, cl_event *marker);
/* The same while no call of the application's gives a queue commands: user events that no command waits for are no obstacle then. */
cl_int opencl_enqueue_last_marker(cl_command_queue queue, cl_event *marker);
/* Whether a command waits for a user event that the application has not set. */
int opencl_has_awaited_events(void);
/* The application has made a user event, which is not set. */
void opencl_note_user_event(cl_event event);
/* clSetUserEventStatus, for the application's user events and those of this server. */
cl_int opencl_set_status(cl_event event, cl_int status);
/* True if the event is complete, or has failed and the vendor is done with it: then the reference to it may go. */
int opencl_has_ended(cl_event event);

/* slicing/plan.c: a time of an event as the application is told it. */
cl_int opencl_event_time(cl_event event, cl_profiling_info name, size_t size, void *value, size_t *size_ret);

/* moving.c: what an event that was made again says of the command that it stands for; 0: that is not asked of such an event. */
int opencl_remade_info(cl_event event, cl_event_info name, size_t size, void *value, size_t *size_ret, cl_int *status);
int opencl_remade_time(cl_event event, cl_profiling_info name, size_t size, void *value, size_t *size_ret, cl_int *status);

/* moving.c */
/* Bytes of content that a memory object has of its own, and that are not in memory which the application's process shares. */
uint64_t opencl_content_bytes(cl_mem memory);
/* So many of them from an offset on, and how many it were; negative: that failed. */
int64_t opencl_save_memory(cl_mem memory, uint64_t offset, void *to, size_t bytes);
/* 0: they are there. */
int opencl_load_memory(cl_mem memory, uint64_t offset, const void *from, size_t bytes);

/* eviction.c: true once of an object that ends here while the application has it still. */
int opencl_ends_unseen(cl_mem memory);

/* usm.c: tells the vendor of the allocations of its own that a kernel follows pointers into. */
cl_int opencl_usm_list(cl_kernel kernel, size_t size, const void *value);

/* slicing/plan.c */
void *opencl_launch_function(void);

/* poll_wait.c */
/* The time `ns` after `when`. */
struct timespec opencl_later(struct timespec when, uint64_t ns);
/* True if that time of CLOCK_MONOTONIC has come. */
int opencl_has_passed(struct timespec when);
/* Waits for callbacks that the vendor has called to have run in the application, for a bounded time. */
void opencl_settle(void);
/* Polls until all commands of the queue are complete, for as long as the session may; the queue has to be waited for afterwards. */
void opencl_watch_queue(cl_command_queue queue);

#endif
