/* Streams run work in order, each on a thread of its own; events are points in them. */
#ifndef REFDRIVER_STREAM_H
#define REFDRIVER_STREAM_H

#include "driver.h"
#include "operation.h"

enum { STREAM_ATTRIBUTES = 32, STREAM_PRIORITY_LEAST = 0, STREAM_PRIORITY_GREATEST = -5 };

/* A point in a stream's work: reached when `number` pieces are done. */
struct point {
    CUstream stream;
    uint64_t number;
};

struct work {
    struct work *next;
    struct operation operation;
    size_t count;
    struct point after[]; /* what must be reached before */
};

struct CUstream_st {
    struct object object;
    CUcontext context;
    CUstream sibling;
    unsigned flags;
    int priority;
    unsigned long long id;
    bool per_thread;
    pthread_t owner; /* of a per-thread default stream */
    struct work *first, *last;
    uint64_t submitted, completed;
    bool started, ended;
    CUstreamAttrValue attributes[STREAM_ATTRIBUTES];
    struct capture *capture;
    CUgraphNode *frontier; /* what the next captured node depends on */
    size_t frontier_count;
};

struct CUevent_st {
    struct object object;
    CUcontext context;
    unsigned flags;
    bool recorded;
    struct point point;
    int64_t nanoseconds; /* when it was reached */
    struct shared_event *shared; /* of several processes: then this says what is recorded */
    unsigned long long capture_id;
    CUgraphNode *frontier; /* recorded in a capture */
    size_t frontier_count;
};

/* The stream of a handle, also of the three default ones, in the current context. */
CUresult stream_resolve(CUstream handle, CUstream *stream);
/* Adds work to a stream, or a node to the graph that it captures. Takes the operation over in any case. */
CUresult stream_submit(CUstream stream, struct operation *operation);
/* The same without capturing. */
CUresult stream_enqueue(CUstream stream, struct operation *operation);
/* Waits for all that was submitted so far. */
void stream_wait(CUstream stream);
/* The same for all streams of a context; the error of the context, if any. */
CUresult streams_wait(CUcontext context, bool also_non_blocking);
static inline bool stream_idle(CUstream stream) { return stream->completed == stream->submitted; }
/* Ends all streams of a context, which are idle. */
void streams_end(CUcontext context);

/* The event's time is now. Called without the driver's lock. */
void event_stamp(CUevent event);

/* An event of the context; takes `shared` over in any case. NULL where memory is out. */
CUevent event_new(CUcontext context, unsigned flags, struct shared_event *shared);

/* --- shared_event.c --- */

struct shared_event *shared_event_new(void);
/* No process can open it any more. */
void shared_event_close(struct shared_event *event);
void shared_event_end(struct shared_event *event);
/* The number of the last record. */
uint64_t shared_event_latest(const struct shared_event *event);
bool shared_event_reached(const struct shared_event *event, uint64_t number);
/* Between two looks. */
void shared_event_pause(void);
/* Before any operation enters a stream: which record it makes or waits for, where its event is a shared one. False where too
 * many records are under way. */
bool shared_event_submit(struct operation *operation);
/* After any operation, done or dropped. */
void shared_event_complete(const struct operation *operation);

/* --- capture.c --- */

/* Adds a node to the graph that the stream captures; takes the operation over. */
CUresult capture_add(CUstream stream, struct operation *operation);
/* The answer of a call that waits for the stream, or uses it without a node, while it captures. */
CUresult capture_forbids(CUstream stream);
/* An event recorded in, or a stream joined to, a capture. */
CUresult capture_record(CUstream stream, CUevent event);
CUresult capture_wait(CUstream stream, CUevent event);
/* The answer of a call whose outcome a graph would not repeat, such as asking for an event, in a thread that has not said that
 * it is careful (cuThreadExchangeStreamCaptureMode). */
CUresult capture_forbids_unsafe(void);
/* The answer of a call that waits for all streams of a context. */
CUresult capture_forbids_all(CUcontext context);
/* True if using the default stream would break into a capture of the same context. */
CUresult capture_implicit(CUcontext context);
/* The stream takes no further part in a capture. */
void capture_leave(CUstream stream);

#endif
