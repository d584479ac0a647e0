/*
 * testapi: a small accelerator library of our own. It computes nothing of
 * value; it exists so that every descriptor of the LAPIS language is used by a
 * real C library whose results are known exactly.
 */
#ifndef TESTAPI_H
#define TESTAPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TA_VERSION_MAJOR 1
#define TA_VERSION_MINOR 0

typedef int32_t ta_status;

enum {
    TA_OK = 0,
    TA_INVALID_VALUE = -1,
    TA_INVALID_DEVICE = -2,
    TA_INVALID_BUFFER = -3,
    TA_INVALID_STREAM = -4,
    TA_INVALID_EVENT = -5,
    TA_INVALID_KERNEL = -6,
    TA_OUT_OF_MEMORY = -7,
    TA_UNSUPPORTED = -8,
    TA_DEVICE_LOST = -9,
    TA_REFUSED = -10,
    TA_INVALID_JOB = -11,
    TA_INVALID_SLOT = -12,
    TA_INVALID_ADDRESS = -13,
    TA_NOT_READY = -14,
    TA_INVALID_MARKER = -15,
    TA_INVALID_PROGRAM = -16,
    TA_INVALID_ENTRY = -17,
    TA_INVALID_BINDING = -18,
    TA_BUSY = -19,
    TA_ABSENT = -20,
};

typedef struct ta_device_st *ta_device;
typedef struct ta_buffer_st *ta_buffer;
/* Dispatchable: the first word of what it points to is a function table (an ICD loader's view). */
typedef struct ta_stream_st *ta_stream;
typedef struct ta_job_st *ta_job;
typedef struct ta_kernel_st *ta_kernel;
/* Reference counted. */
typedef struct ta_event_st *ta_event;
/* Created without waiting. */
typedef struct ta_marker_st *ta_marker;
/* Loaded; its entries, and the bindings of these, end with it, and the next ones have their addresses. */
typedef struct ta_program_st *ta_program;
typedef struct ta_entry_st *ta_entry;
typedef struct ta_binding_st *ta_binding;
/* Handles that are numbers. */
typedef uint32_t ta_slot;
typedef uint64_t ta_address;

/* --- calls without data ------------------------------------------------ */

ta_status ta_noop(void);
/* Counts itself; see ta_noop_count. */
ta_status ta_noop_async(void);
uint64_t ta_noop_count(void);
/* The CPU's time stamp counter when the library was called; 0 where there is none. */
uint64_t ta_ticks(void);
int32_t ta_add(int32_t a, int32_t b);
int32_t ta_add_three(int32_t a, int32_t b, int32_t c);
const char *ta_version(void);

/* --- devices and their memory ------------------------------------------ */

ta_status ta_device_open(const char *name, ta_device *device);
ta_status ta_device_close(ta_device device);

ta_status ta_buffer_create(ta_device device, size_t bytes, ta_buffer *buffer);
ta_status ta_buffer_destroy(ta_buffer buffer);
ta_status ta_buffer_write(ta_buffer buffer, size_t offset, size_t bytes, const void *from);
ta_status ta_buffer_read(ta_buffer buffer, size_t offset, size_t bytes, void *to);
/* May run after it returned; later calls see its effect. */
ta_status ta_buffer_fill(ta_buffer buffer, uint8_t value);
/* Without `wait` it may run after it returned. */
ta_status ta_buffer_set(ta_buffer buffer, size_t offset, uint8_t value, int32_t wait);

/* --- numbers and structs by value --------------------------------------- */

typedef enum { TA_RED, TA_GREEN, TA_BLUE } ta_color;
typedef struct { double x, y; int32_t tag; } ta_point;  /* crosses in memory */
typedef struct { int16_t a; int8_t b; } ta_small;       /* crosses in one integer register */
typedef struct { float re, im; } ta_pair;               /* crosses in one vector register */
typedef struct { int32_t low[3]; float high; } ta_quad; /* mixed, with an array inside */
typedef union { int64_t integer; double real; uint8_t bytes[8]; } ta_value;

double ta_scalars(int8_t a, uint8_t b, int16_t c, uint16_t d, int32_t e, uint32_t f, int64_t g, uint64_t h,
                  float i, double j, _Bool k, char l);
int8_t ta_negate8(int8_t v);
uint16_t ta_increment16(uint16_t v);
int64_t ta_negate64(int64_t v);
float ta_half_float(float v);
double ta_half(double v);
_Bool ta_not(_Bool v);
ta_color ta_color_next(ta_color c);
ta_point ta_point_add(ta_point a, ta_point b);
ta_small ta_small_swap(ta_small v);
ta_pair ta_pair_multiply(ta_pair a, ta_pair b);
ta_quad ta_quad_reverse(ta_quad v);
int64_t ta_value_bits(ta_value v);
void ta_level_set(int32_t level);
int32_t ta_level_get(void);

/* --- buffers ------------------------------------------------------------- */

typedef struct { int64_t sum; int32_t least, greatest; } ta_summary;

ta_status ta_summarize(const int32_t *values, size_t count, ta_summary *summary);
ta_status ta_scale(double *values, size_t count, double by);
/* *count: in, room in `values`; out, how many there are. `values` may be NULL. */
ta_status ta_primes(uint32_t *count, uint32_t *values);
/* Run-length encoding; only `*written` bytes of `to` are meaningful. */
ta_status ta_compress(const void *from, size_t bytes, void *to, size_t capacity, size_t *written);
/* Writes only every second element of `values`. */
ta_status ta_sprinkle(int32_t *values, size_t count, int32_t value);
/* Matrix of `rows` pointers to rows of `columns` numbers. */
ta_status ta_matrix_sum(const float *const *rows, uint32_t row_count, uint32_t columns, double *sum);
ta_status ta_matrix_fill(float **rows, uint32_t row_count, uint32_t columns, float value);
/* `at` is a number of kind `kind`: 0 int32_t, 1 double, 2 a string. */
ta_status ta_describe(uint32_t kind, const void *at, char *text, size_t capacity);
/* Adds one to every number of an opaque blob of `count` 16-bit values handed as bytes. */
ta_status ta_bump(void *blob, size_t count);

/* --- strings ------------------------------------------------------------- */

const char *ta_error_name(ta_status status);
ta_status ta_upper(const char *text, char *to, size_t capacity);
/* lengths NULL, or lengths[i] == 0: strings[i] is NUL-terminated. */
ta_status ta_join(uint32_t count, const char **strings, const size_t *lengths, char *to, size_t capacity,
                  size_t *written);
/* Ends with NULL. */
uint32_t ta_count_words(const char *const *words);

/* --- devices: queries, properties, lists ----------------------------------- */

#define TA_DEVICE_NAME 1    /* char[] */
#define TA_DEVICE_UNITS 2   /* uint32_t */
#define TA_DEVICE_PARENT 3  /* ta_device */
#define TA_DEVICE_VENDOR 4  /* const char *, owned by the library */
#define TA_DEVICE_MOTTOS 5  /* const char *[2], owned by the library; newer than the specification */

ta_status ta_device_query(ta_device device, uint32_t what, size_t bytes, void *value, size_t *bytes_needed);
/* How often ta_device_units ran in the library. */
uint64_t ta_device_units_runs(void);
/* Of the buffer's device. */
ta_status ta_buffer_units(ta_buffer buffer, uint32_t *units);
ta_status ta_device_units(ta_device device, uint32_t *units);

#define TA_PROPERTY_PARENT 0x101 /* ta_device */
#define TA_PROPERTY_UNITS 0x102  /* a number */

/* Pairs of name and value, ended by a 0 name. */
ta_status ta_device_create(const intptr_t *properties, ta_device *device);
/* The two devices that always exist. */
ta_status ta_device_list(uint32_t capacity, ta_device *devices, uint32_t *count);

typedef struct {
    const char *name;
    ta_device parent;
    uint32_t units;
} ta_device_info;

ta_status ta_device_describe(ta_device device, ta_device_info *info);

/* --- handles -------------------------------------------------------------- */

ta_status ta_event_create(ta_event *event);
ta_status ta_event_retain(ta_event event);
ta_status ta_event_release(ta_event event);
ta_status ta_event_references(ta_event event, uint32_t *references);
ta_status ta_event_signal(ta_event event, uint64_t value);
/* Sum of the values; every event must be live. */
ta_status ta_events_sum(uint32_t count, const ta_event *events, uint64_t *sum);
/* Orders the handles by their events' values. */
ta_status ta_events_sort(uint32_t count, ta_event *events);
/* Creates `count` events at once. */
ta_status ta_events_create(uint32_t count, ta_event *events);

ta_status ta_slot_take(ta_slot *slot);
ta_status ta_slot_set(ta_slot slot, int32_t value);
ta_status ta_slot_get(ta_slot slot, int32_t *value);
ta_status ta_slot_give(ta_slot slot);

ta_status ta_address_reserve(size_t bytes, ta_address *address);
ta_status ta_address_bytes(ta_address address, size_t *bytes);
ta_status ta_address_release(ta_address address);

ta_status ta_buffer_device(ta_buffer buffer, ta_device *device);
/* `value` is a ta_buffer or any other bytes; the answer is the buffer's size, or the sum of the bytes. */
ta_status ta_measure(const void *value, size_t bytes, size_t *answer);
ta_status ta_buffer_bytes(ta_buffer buffer, size_t *bytes);
ta_status ta_buffer_tag_set(ta_buffer buffer, void *tag);
void *ta_buffer_tag(ta_buffer buffer);
/* Where the buffer's bytes lie on the device, and the sum of some of them: TA_INVALID_VALUE unless they lie there. */
void *ta_buffer_address(ta_buffer buffer);
/* The number of the buffer's place: the one in the file that TESTAPI_PLACES names, which differs where a test writes another one, and
   the buffer's bytes. 0: there is no such buffer. */
uint64_t ta_buffer_place(ta_buffer buffer);
ta_status ta_buffer_sum_at(ta_buffer buffer, const void *address, size_t bytes, uint64_t *sum);
/* `next` is for later versions: NULL. */
ta_status ta_buffer_touch(ta_buffer buffer, const void *next);

/* --- markers: objects that may be created after the call returned ------------ */

/* Handles that are no objects; they have the least and the greatest value, and cannot be changed or destroyed. */
#define TA_MARKER_FIRST ((ta_marker)0x1)
#define TA_MARKER_LAST ((ta_marker)0xffff)

/* `bytes` of device memory belong to it. Fails for the value 0, and (TA_OUT_OF_MEMORY) for TA_MARKER_HEAVY. */
ta_status ta_marker_create(ta_marker *marker, uint64_t value, size_t bytes);
#define TA_MARKER_HEAVY UINT64_MAX
/* Creates `count` with the values `first`, `first` + 1, ... */
ta_status ta_markers_create(uint32_t count, ta_marker *markers, uint64_t first);
/* Without `wait` it may run after it returned. */
ta_status ta_marker_make(ta_marker *marker, uint64_t value, int32_t wait);
/* NULL on failure. */
ta_marker ta_marker_copy(ta_marker marker, ta_status *error);
/* Its value is the sum of the `count` cells, whenever it is asked for, which must stay there as long as it lives.
   Fails if the first is UINT64_MAX. */
ta_status ta_marker_watch(const uint64_t *cells, size_t count, ta_marker *marker);
/* The value that it was created with. */
ta_status ta_marker_first_value(ta_marker marker, uint64_t *value);
ta_status ta_marker_destroy(ta_marker marker);
/* The same after it returned. */
ta_status ta_marker_destroy_async(ta_marker marker);
ta_status ta_marker_set(ta_marker marker, uint64_t value);
/* May run after it returned. */
ta_status ta_marker_add(ta_marker marker, uint64_t value);
ta_status ta_marker_value(ta_marker marker, uint64_t *value);
/* The marker with the greatest value; TA_MARKER_LAST where there is none. */
ta_marker ta_marker_greatest(uint32_t count, const ta_marker *markers);
typedef struct { ta_marker marker; uint64_t value; } ta_note;
/* Fills in the value of every note's marker. */
ta_status ta_notes_read(uint32_t count, ta_note *notes);
/* In any position: the first marker follows the last. */
ta_status ta_marker_next(ta_marker marker, ta_marker *next);
uint64_t ta_markers_live(void);
/* A stream (a handle of another shape) like another one. */
ta_stream ta_stream_fork(ta_stream stream, ta_status *error);

/* --- programs: objects that end with others ----------------------------------- */

#define TA_PROGRAM_ENTRIES 4

/* The library has room for a few at a time; the next one takes the first free place. */
ta_status ta_program_load(uint32_t version, ta_program *program);
/* TA_BUSY while it is kept. */
ta_status ta_program_unload(ta_program program);
/* The same after it returned. */
ta_status ta_program_unload_async(ta_program program);
/* Others may load programs in its place while this call still takes its time. */
ta_status ta_program_unload_slowly(ta_program program, uint32_t milliseconds);
ta_status ta_program_keep(ta_program program, int32_t keep);
/* The same entry whenever it is asked for. */
ta_status ta_program_entry(ta_program program, uint32_t number, ta_entry *entry);
ta_status ta_program_entries(ta_program program, uint32_t capacity, ta_entry *entries, uint32_t *count);
/* Another way to the first entry; NULL on failure. */
ta_entry ta_program_main(ta_program program);
/* Never changes: 100 * the program's version + the entry's number. */
ta_status ta_entry_facts(ta_entry entry, uint64_t *facts);
/* Where the entry lies. */
ta_status ta_entry_place(ta_entry entry, uint64_t *place);
/* A remark; 0 at first. */
ta_status ta_entry_note(ta_entry entry, uint64_t note);
ta_status ta_entry_noted(ta_entry entry, uint64_t *note);
/* May run after it returned. `bytes` of device memory belong to the binding, and the `count` cells, whose sum it
   tells, must stay there as long as it lives. An entry has at most one at a time. */
ta_status ta_entry_bind(ta_entry entry, size_t bytes, const uint64_t *cells, size_t count, ta_binding *binding);
ta_status ta_binding_sum(ta_binding binding, uint64_t *sum);
ta_status ta_binding_end(ta_binding binding);

/* The type of `object`: a ta_buffer, or a ta_marker or ta_device in its place. */
#define TA_IS_BUFFER 1
#define TA_IS_MARKER 2
#define TA_IS_DEVICE 3
ta_status ta_object_kind(ta_buffer object, uint32_t *kind);

/* --- structs with handles and pointers -------------------------------------- */

typedef struct { uint32_t offset, bytes; } ta_region;

typedef struct {
    ta_buffer source, destination;
    const ta_region *regions;
    uint32_t region_count;
    const char *label; /* may be NULL */
} ta_copy;

ta_status ta_copy_run(const ta_copy *copy, size_t *bytes_copied);
ta_status ta_copy_many(uint32_t count, const ta_copy *copies, size_t *bytes_copied);

/* --- streams: copies that end later ------------------------------------------ */

/* Reports through `error`; NULL on failure. */
ta_stream ta_stream_create(ta_device device, ta_status *error);
ta_status ta_stream_destroy(ta_stream stream);
ta_status ta_read_async(ta_buffer buffer, size_t offset, size_t bytes, void *to, ta_stream stream);
ta_status ta_stream_synchronize(ta_stream stream);
ta_status ta_flush(void);

/* --- jobs: outputs that a library thread writes later -------------------------- */

ta_status ta_job_start(uint32_t milliseconds, uint8_t value, void *to, size_t bytes, ta_job *job);
/* Doubles every byte in place, `milliseconds` later. */
ta_status ta_job_double(uint32_t milliseconds, uint8_t *bytes, size_t count, ta_job *job);
ta_status ta_job_query(ta_job job); /* TA_OK or TA_NOT_READY */
ta_status ta_job_wait(ta_job job);
ta_status ta_job_destroy(ta_job job);

/* --- the library's own and the application's memory ------------------------------ */

#define TA_MAP_READ 1
#define TA_MAP_WRITE 2

void *ta_buffer_map(ta_buffer buffer, uint32_t flags, size_t offset, size_t bytes, ta_status *error);
ta_status ta_buffer_unmap(ta_buffer buffer, void *mapped);
/* The buffer uses the application's memory as long as it lives. */
ta_status ta_buffer_wrap(ta_device device, void *host, size_t bytes, ta_buffer *buffer);
/* Memory that both the application and the device reach. */
void *ta_shared_alloc(size_t bytes);
/* A copy, or NULL of nothing; ended by ta_shared_free. */
uint8_t *ta_shared_copy(const uint8_t *from, size_t bytes);
void ta_shared_free(void *p);
ta_status ta_shared_fill(uint8_t *p, size_t bytes, uint8_t value);
uint64_t ta_shared_sum(const uint8_t *p, size_t bytes);

/* --- callbacks ----------------------------------------------------------------- */

typedef int32_t (*ta_visit)(uint32_t index, void *context);
typedef void (*ta_notify)(ta_event event, ta_status status, void *context);
typedef void (*ta_log)(const char *message, void *context);
typedef uint32_t (*ta_filter)(const uint8_t *from, uint8_t *to, size_t bytes, int32_t *state, void *context);

/* Calls visit(0..count) and returns the sum; a negative answer ends it. */
int64_t ta_each(uint32_t count, ta_visit visit, void *context);
/* Calls once, from a thread of the library, `milliseconds` later. */
ta_status ta_event_notify(ta_event event, uint32_t milliseconds, ta_notify notify, void *context);
/* The same; the event lives until `notify` has returned, whatever the application releases. */
ta_status ta_event_post(ta_event event, uint32_t milliseconds, ta_notify notify, void *context);
/* Calls `done` once, from a thread of the library, `milliseconds` later; not if anything goes wrong before. */
typedef void (*ta_done)(void *context);
ta_status ta_event_then(ta_event event, uint32_t milliseconds, ta_done done, void *context);
/* How many calls of `notify` by threads of ta_event_post have returned. */
uint32_t ta_event_posts(void);
/* Called for every message until the device is closed. */
ta_status ta_device_log(ta_device device, ta_log log, void *context);
ta_status ta_device_say(ta_device device, const char *message);
/* The device of the calling thread: NULL until it says so. */
ta_status ta_focus(ta_device device);
ta_status ta_focused(ta_device *device);
/* A number of that device, in one of four places: 0 until it is set. */
ta_status ta_focus_mark(uint32_t place, uint32_t mark);
ta_status ta_focus_marked(uint32_t place, uint32_t *mark);
/* Filters `bytes` bytes in pieces of 1000; returns through `*total` the sum of the filter's answers. */
ta_status ta_filter_run(const uint8_t *from, uint8_t *to, size_t bytes, ta_filter filter, void *context,
                        uint64_t *total);

/* --- tables and pointers of functions ------------------------------------------- */

typedef struct ta_operations {
    size_t size;
    int32_t (*ta_add)(int32_t a, int32_t b);
    ta_status (*ta_noop)(void);
    int32_t (*multiply)(int32_t a, int32_t b); /* not exported */
    ta_status (*fill)(ta_buffer buffer, uint8_t value);
} ta_operations;

const ta_operations *ta_get_operations(void);

/* NULL for a name that the library does not know. */
void *ta_get_function(const char *name);
/* An extension: not exported, found by ta_get_function. */
int32_t ta_extension_square(int32_t v);
/* Declared here, but no library has it. */
ta_status ta_absent(int32_t v);
/* No library has this either; remotely the specification's own code answers: the number of bits in `v`. */
ta_status ta_bit_count(uint64_t v, uint32_t *bits);

/* --- kernels: arguments whose meaning the library knows --------------------------- */

ta_status ta_kernel_create(ta_device device, const char *name, ta_kernel *kernel);
ta_status ta_kernel_destroy(ta_kernel kernel);
ta_status ta_kernel_argument_count(ta_kernel kernel, uint32_t *count);
ta_status ta_kernel_argument(ta_kernel kernel, uint32_t index, uint32_t *is_buffer, size_t *bytes);
/* arguments[i] points to a ta_buffer or to a number. */
ta_status ta_kernel_launch(ta_kernel kernel, void **arguments);
uint64_t ta_kernel_cost(ta_kernel kernel);
/* Sets a buffer (or NULL) for ta_kernel_run, in one of two places. The kernel keeps its address and not the buffer. */
ta_status ta_kernel_set(ta_kernel kernel, uint32_t place, ta_buffer buffer);
/* Another kernel with the same buffers. */
ta_status ta_kernel_copy(ta_kernel kernel, ta_kernel *copy);
/* Fills the buffers that are set. The library follows their addresses: it aborts if one of them has ended. */
ta_status ta_kernel_run(ta_kernel kernel, uint8_t value);

/* --- errors, order, resources -------------------------------------------------------- */

/* Fails with `status`. */
ta_status ta_fail(ta_status status);
ta_status ta_fail_async(ta_status status);
/* A number that the last ta_mark_async wrote. */
ta_status ta_mark_async(uint64_t value);
uint64_t ta_mark(void);
/* A baton that threads hand on, numbered 1, 2, 3...; ta_baton says how often a number did not follow the one before. */
ta_status ta_baton_async(uint64_t number);
uint64_t ta_baton(uint64_t number);
/* Appends; ta_trail_read empties. */
ta_status ta_trail_async(uint32_t value);
ta_status ta_trail_read(uint32_t *values, size_t capacity, size_t *count);
/* index < 16 */
ta_status ta_pick(uint32_t index, uint32_t *value);
ta_status ta_reserve(uint64_t bytes);
ta_status ta_unreserve(uint64_t bytes);
ta_status ta_reserved(uint64_t *bytes);
/* Spends `microseconds` of the device. */
ta_status ta_work(uint32_t microseconds);
uint64_t ta_last_work(void);
/* Not virtualized. */
ta_status ta_legacy(void);
int32_t ta_legacy_level(void);
/* The process that runs the library. */
int32_t ta_process(void);

/* --- structs whose pointers the library reads behind, moves and sets ------------------------- */

/* Copies min(bytes, room) bytes. `units` is the sum over `devices`; if that is NULL the library lists its own, with
   their names; if `label` is NULL it gives one. Then `moves` says what it does with the pointers. */
typedef struct ta_transfer {
    const uint8_t *from;
    size_t bytes;
    uint8_t *to;
    size_t room;
    const char *label;
    const ta_device *devices;
    const char *const *names;
    uint32_t device_count;
    uint32_t units;
    uint32_t moves;
} ta_transfer;
enum {
    TA_MOVES_NOTHING,
    TA_MOVES_FROM,     /* behind what it has read */
    TA_MOVES_TO,       /* behind what it has written */
    TA_MOVES_LABEL,    /* to the second character */
    TA_REPLACES_FROM,  /* by memory of its own */
    TA_CLEARS_FROM,    /* NULL */
    TA_REPLACES_LABEL, /* by one of its own */
};
ta_status ta_transfer_run(ta_transfer *transfer);
/* A list of the library's own, in the order of their numbers; its end is NULL. */
const char *const *ta_transfer_labels(void);

/* --- structs that grow ------------------------------------------------------------------------ */

/* `struct_size` says how many bytes the caller has: at least up to `level`; what it lacks is 0. Bytes behind those that
   the library knows must be 0, and there is at most a page. The library sums what it is given and fills what has room. */
typedef struct ta_options {
    uint32_t struct_size;
    uint32_t level;
    const uint32_t *more;
    uint64_t more_count;
    uint64_t sum; /* written */
    ta_device device;
    uint32_t units;       /* written */
    uint32_t struct_seen; /* written: struct_size, as the library was told */
} ta_options;
ta_status ta_options_apply(ta_options *options);
ta_status ta_options_check(const ta_options *options);

/* --- pointers that the library advances ------------------------------------------------------ */

/* The library copies elements, each plus `add`, while there are some and there is room, at most `most` in a call. It
   advances both pointers and lowers both counts. */
typedef struct ta_walk {
    const uint16_t *from;
    size_t left;
    uint16_t *to;
    uint16_t room;
    uint16_t add;
    uint32_t most;
    uint32_t moves; /* 1: the library advances `from` beyond its end, which it must not */
} ta_walk;
ta_status ta_walk_on(ta_walk *walk);

/* The sum of all bytes of so many rows, each at a multiple of 64; what else they are is an error. `sums` has one for each. */
ta_status ta_rows_sum(uint32_t rows, size_t bytes, const uint8_t *const *from, uint64_t *sums, uint8_t *last);

/* --- structs of the application with a part of the library's own -------------------------------- */

/* A stream in the manner of zlib's: every byte is replaced as `table` says, added to the sum of all before, and written
   twice. `internal` is the library's own, and there is no other memory of a stream than the application's. Programs may read
   `internal.sum` and `internal.held`. */
typedef struct ta_flow_internal {
    uint32_t begun;
    uint32_t held; /* a byte that is to be written once more */
    uint8_t sum;
    uint8_t last[16384]; /* the bytes that were read last, as a ring */
    const uint32_t *counted;
} ta_flow_internal;
typedef struct ta_flow {
    const uint8_t *next_in;
    uint32_t avail_in, total_in;
    uint8_t *next_out;
    uint32_t avail_out, total_out;
    const uint8_t *table; /* 256 bytes; `ta_flow_init` sets the library's own, in which each byte stands for itself */
    uint32_t *counts;     /* NULL, or the library's to count bytes in: how often each was read */
    uint32_t counts_size; /* in elements, at least 256 */
    uint32_t most;        /* written: how often the most frequent byte was read, if it is counted */
    struct ta_flow_internal internal;
    uint32_t distance; /* `again` is the byte that was read so many bytes ago, at most 16384; 0: the newest */
    uint32_t again;
    uint32_t look;        /* at most 16384 */
    uint64_t behind;      /* written: a hash of the `look` bytes that lie before the first of this call, of those that were read */
} ta_flow;
ta_status ta_flow_init(ta_flow *flow);
/* As after `ta_flow_init`, but the members that the application has set stay. */
void ta_flow_reset(ta_flow *flow);
ta_status ta_flow_run(ta_flow *flow);
ta_status ta_flow_end(ta_flow *flow);

/* --- calls that report by an object ------------------------------------------------------- */

/* How a call ended: NULL for success, else an object with a code and a text, which the application frees. */
typedef struct ta_report_st ta_report_object;
typedef struct ta_report_st *ta_report;
typedef struct ta_ledger_st *ta_ledger;

int32_t ta_report_code(const ta_report_object *report);
const char *ta_report_text(ta_report report);
void ta_report_free(ta_report_object *const report);
/* How many the library has made that were not freed. */
ta_report ta_reports_alive(uint32_t *count);

/* A sum with a bound: adding beyond it fails, and `left` says how much has room. */
ta_report ta_ledger_create(uint64_t bound, ta_ledger *ledger);
ta_report ta_ledger_add(ta_ledger ledger, uint64_t value, uint64_t *left);
ta_report ta_ledger_sum(ta_ledger ledger, uint64_t *sum);
/* The same without waiting. */
ta_report ta_ledger_put(uint64_t value, ta_ledger ledger);
/* Where that does not wait: how many have failed, and the sum of their values. */
ta_report ta_ledger_missed(uint32_t *count, uint64_t *values);
ta_report ta_ledger_end(ta_ledger ledger);
ta_report_object *ta_ledger_reserve(uint64_t bytes);
ta_report ta_ledger_release(uint64_t bytes);
/* Calls `reported` once, from a thread of the library, `milliseconds` later: with NULL, or with a report that the
 * application frees if the ledger is full by then. */
typedef void (*ta_reported)(ta_report report, void *context);
ta_report ta_ledger_later(ta_ledger ledger, uint32_t milliseconds, ta_reported reported, void *context);
/* Not virtualized. */
ta_report ta_ledger_print(ta_ledger ledger);

/* --- objects that calls fill with how they ended --------------------------------- */

typedef struct ta_outcome_st ta_outcome;
/* TA_OK and "" until a call fills it. */
ta_outcome *ta_outcome_new(void);
void ta_outcome_free(ta_outcome *outcome);
int32_t ta_outcome_code(const ta_outcome *outcome);
/* Until the next call that fills it. */
const char *ta_outcome_text(const ta_outcome *outcome);
void ta_outcome_set(ta_outcome *outcome, int32_t code, const char *text);
/* The root of a square; of no other number. */
uint32_t ta_root(uint64_t square, ta_outcome *outcome);
/* NULL, and an outcome that says so, for a bound of 0. */
ta_ledger ta_ledger_open(uint64_t bound, ta_outcome *outcome);
/* Bytes that are charged and never given back. */
void ta_keep(uint64_t bytes, ta_outcome *outcome);
/* Not virtualized. */
void ta_forget(ta_outcome *outcome);

/* --- chains of structs that say what they are ------------------------------------ */

enum { TA_LINK_DIGIT = 1, TA_LINK_LABEL = 2, TA_LINK_NAME = 3 };
typedef struct ta_link_digit {
    uint16_t kind;
    void *next;
    uint32_t digit;
    uint32_t place; /* out: which one it was */
} ta_link_digit;
typedef struct ta_link_label {
    uint16_t kind;
    void *next;
    char text[24]; /* in; out: in capitals */
} ta_link_label;
typedef struct ta_link_name {
    uint16_t kind;
    void *next;
    const char *name; /* a pointer: not virtualized */
} ta_link_name;
typedef struct ta_plan {
    void *next; /* any of the structs above, in any order */
    uint64_t number;  /* out: of the digits in the chain */
    uint32_t links;   /* out: how many there are */
} ta_plan;
ta_status ta_plan_make(ta_plan *plan);
/* The number of links; what nobody has described is refused. */
int32_t ta_plan_links(const ta_plan *plan);

/* --- tables of tables ------------------------------------------------------------ */

/* A table that libraries of several versions have: each as much of it as it knows. */
#define TA_CATALOG_MINOR 2
/* Tables of functions that a catalog leads to: each says what it is. */
typedef struct ta_extra {
    uint32_t kind, revision;
    const struct ta_extra *next;
} ta_extra;
enum { TA_EXTRA_TWICE = 1, TA_EXTRA_NAME = 2, TA_EXTRA_NONE = 3 };
typedef struct ta_extra_twice {
    ta_extra base;
    int32_t (*twice)(int32_t value);
} ta_extra_twice;
typedef struct ta_extra_name {
    ta_extra base;
    const char *(*name)(void);
    ta_report (*rename)(const char *name);
} ta_extra_name;
/* This library has none. */
typedef struct ta_extra_none {
    ta_extra base;
    int32_t (*none)(void);
} ta_extra_none;
typedef struct ta_catalog {
    uint32_t struct_size; /* bytes that the library has of it */
    struct {
        uint16_t major, minor;
    } version;
    const void *more; /* the library's own */
    ta_report (*count)(ta_buffer buffer, uint64_t *ones);
    ta_report (*print)(ta_buffer buffer);
    ta_report (*sort)(ta_buffer buffer);           /* this library has none */
    int32_t (*scale)(int32_t value);
    const ta_extra *extras;
    int32_t (*later)(int32_t value);               /* beyond this library's struct_size */
    uint64_t serial;                               /* as well */
} ta_catalog;
/* Its functions are found by nothing else. */
typedef struct ta_catalogs {
    const ta_catalog *(*catalog)(uint16_t major);
    const char *(*name)(void);
} ta_catalogs;
/* NULL: no catalog of this version. */
const ta_catalogs *ta_get_catalogs(void);

/* --- memory that is handed out, and memory of both sides -------------------------------- */

/* An allocator: an object that is a table of functions, each called with it. */
typedef struct ta_pool {
    uint32_t version;
    void *(*take)(struct ta_pool *pool, size_t bytes);
    void (*give)(struct ta_pool *pool, void *p);
    uint32_t (*lent)(const struct ta_pool *pool); /* pieces that nobody has given back */
    void (*trim)(struct ta_pool *pool);           /* this library has none */
} ta_pool;
/* Two exist, 0 and 1. */
ta_status ta_pool_get(uint32_t number, ta_pool **pool);
ta_status ta_pool_give(ta_pool *pool, void *p);

/* Cells that the application, the library, or both use at any time. */
typedef struct ta_board_object *ta_board;
/* `cells` stay the application's; NULL: the library's own, zeroed. */
ta_status ta_board_create(uint8_t *cells, size_t bytes, ta_board *board);
ta_status ta_board_destroy(ta_board board);
/* The application gives the name back to the pool; and each word, and their list. */
ta_status ta_board_name(ta_board board, ta_pool *pool, char **name);
ta_status ta_board_words(ta_board board, ta_pool *pool, char ***words, size_t *count);
/* Valid as long as the board. */
ta_status ta_board_title(ta_board board, const char **title);
/* The last sum in words: valid until the next. */
const char *ta_board_told(void);
ta_status ta_board_cells(ta_board board, uint8_t **cells);
/* Adds the cells of `from` to those of `to`, and `value` to each. */
ta_status ta_board_add(ta_board to, ta_board from, uint8_t value);
/* Adds `value` to each cell of the boards that are pinned on it. A board lives as long as it is pinned. */
ta_status ta_board_pin(ta_board board, uint32_t pin, ta_board part);
ta_status ta_board_raise(ta_board board, uint8_t value);
/* A board with the cells of one that is pinned. */
ta_status ta_board_pinned(ta_board board, uint32_t pin, ta_board *part);

/* --- a synthetic accelerator ---------------------------------------------------------- */

/* One device that runs one thing at a time, in the order of submission, and cannot be interrupted. It computes
   nothing: a submission occupies it for the time that it says, or until its process has ended: then what that process had
   submitted goes, and what others submitted comes sooner. All processes with the same TESTAPI_ACCELERATOR in
   their environment (the name of a file, created on demand) share one; without it every process has its own. */

/* Returns at once. `client` stands in the device's log. */
ta_status ta_accelerator_submit(uint32_t client, uint64_t nanoseconds);
/* Waits until everything is done that this process submitted. */
ta_status ta_accelerator_finish(void);

/* The records of the device, oldest first: the layout of the file. */
typedef struct ta_accelerator_record {
    uint64_t begin, end; /* CLOCK_MONOTONIC, nanoseconds */
    uint32_t client, process;
} ta_accelerator_record;
typedef struct ta_accelerator_file {
    uint64_t free_at; /* when the device has done everything submitted so far */
    uint64_t count;   /* of records ever made; the last TA_ACCELERATOR_RECORDS are kept */
    uint64_t lock;    /* the process that is writing, or 0 */
    ta_accelerator_record records[];
} ta_accelerator_file;
#define TA_ACCELERATOR_RECORDS (1u << 20)

/* Answers without any device: sizes of elements by kind (0..3), else 0. */
size_t ta_element_bytes(uint32_t kind);

#ifdef __cplusplus
}
#endif

#endif
