/* Launches in parts: what the files of slicing share. plan.c says which launches, run.c runs them, costs.c remembers what they cost,
 * mispredict.c finds predictions that were wrong. */
#ifndef OPENCL_SLICING_H
#define OPENCL_SLICING_H

#include "opencl_types.h"
#include "rewrite.h"
#include <pthread.h>

/* ---- costs.c: settings, and what is remembered of programs and kernels -------------------------- */

struct slice_settings {
    double slice_ns;      /* The time that a sub-launch shall take; 0: slicing is off. */
    size_t least_groups;  /* No sub-launch gets fewer work-groups. */
    size_t fixed_groups;  /* Every sub-launch gets this many, whatever they cost: for tests and measurements; 0: off. */
    int told;             /* Each sliced launch is a line in the log. */
};
/* Read once, by slice_is_on. */
extern struct slice_settings slice_settings;
int slice_is_on(void);

/* Launches of a kernel that are alike enough to cost the same per work-group. */
struct slice_cost {
    cl_ulong likeness;
    double group_ns;
    unsigned late; /* How often it took far longer than that. */
};
enum { SLICE_COSTS = 32, SLICE_DOUBTS = 3 };

/* A kernel function of a program. */
struct slice_code {
    struct slice_code *next;
    char *name;
    enum slice_verdict verdict;
    unsigned long number;
    struct slice_cost costs[SLICE_COSTS];
    unsigned oldest;
};

struct slice_program {
    struct slice_program *next;
    cl_program program;
    unsigned uses; /* Kernels and launches that need it. */
    cl_program variant;
    int variant_tried;
    struct slice_code *codes;
};

struct slice_argument {
    enum { ARGUMENT_UNSET, ARGUMENT_BYTES, ARGUMENT_LOCAL, ARGUMENT_SVM } kind;
    size_t size;
    const void *svm;
    unsigned char *bytes;
};

struct slice_kernel {
    struct slice_kernel *next;
    cl_kernel kernel;
    struct slice_program *program;
    struct slice_code *code;
    struct slice_argument *arguments;
    cl_uint count;
    int has_more; /* Something was said about it that a copy would lack. */
};

/* Guards all records. A callback of the vendor's never takes it. */
extern pthread_mutex_t slice_lock;

/* The record of a kernel; NULL: there is none, or slicing is off. */
struct slice_kernel *slice_kernel_of(cl_kernel kernel);

/* With the lock: the code of a kernel, with a verdict; NULL: memory is short, or the vendor does not know the kernel. */
struct slice_code *slice_judged_code(struct slice_kernel *kernel, cl_device_id device);
/* With the lock: a kernel with the same arguments for the launch's own use; NULL if there can be none. */
cl_kernel slice_kernel_copy(struct slice_kernel *kernel, cl_device_id device);
/* With the lock: launches that cost alike have the same number, which is not 0. */
cl_ulong slice_likeness(const struct slice_kernel *kernel, cl_device_id device, const size_t *size, const size_t *local);
/* With the lock: NULL: launches like this were never measured, or long ago. */
struct slice_cost *slice_cost_of(struct slice_code *code, cl_ulong likeness);
/* With the lock. */
void slice_learn_cost(struct slice_code *code, cl_ulong likeness, double group_ns);

/* ---- run.c: a launch that runs in parts ---------------------------------------------------------- */

struct slice_box {
    size_t first[3], count[3];
};

/* A launch's dimensions, those that it has not as 1. */
struct slice_range {
    cl_uint dimensions;
    size_t offset[3], size[3], local[3], groups[3];
    size_t total; /* Work-groups. */
};

struct slice_job {
    struct slice_job *next;
    cl_command_queue queue;
    cl_kernel kernel;
    cl_uint hidden; /* Index of the first hidden argument; 0 with `rewritten` unset. */
    int rewritten;
    cl_event begin, submissions_done;
    struct slice_range range;
    size_t limit, least, units;
    struct slice_program *program;
    struct slice_code *code;
    cl_ulong likeness;
    double group_ns;
    unsigned long serial;
    struct slice_worker *worker;
    cl_int status;
    /* Its outcome. */
    size_t launches, late; /* Late: longer than two slices. */
    size_t longest_groups;
    cl_ulong first_start;
    double longest_ns, total_ns;
};

/* When the first part of a sliced launch began, which its event does not say. */
struct slice_start {
    struct slice_start *next;
    cl_event event;
    unsigned long serial;
    cl_ulong ns;
    int noted;
};

static inline size_t slice_smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

void slice_expect_start(cl_event event, unsigned long serial);
/* With the lock. */
struct slice_start *slice_start_of(unsigned long serial);

/* The next box of at most `most` work-groups (at least one) from number `at` on, in the order of get_group_id's dimensions, the first
 * running fastest; returns how many it has. Boxes are parts of a row, rows, or planes. */
size_t slice_next_box(const struct slice_range *range, size_t at, size_t limit, size_t most, struct slice_box *box);
cl_int slice_set_hidden(cl_kernel kernel, cl_uint index, const size_t *values);
cl_int slice_enqueue_box(struct slice_job *job, cl_command_queue queue, const struct slice_box *box, cl_uint waits,
                         const cl_event *wait_list, cl_event *event);

void slice_free_job(struct slice_job *job);
/* The thread that runs a device's parts; NULL: there is none. */
struct slice_worker *slice_worker_of(cl_device_id device);
/* An event's callback: what the launch (`argument`, a job) has to wait for is complete, or failed. Takes the job over. */
void CL_CALLBACK slice_may_begin(cl_event event, cl_int status, void *argument);

/* ---- mispredict.c: launches that went whole on a prediction -------------------------------------- */

struct slice_watch {
    unsigned long code;
    cl_ulong likeness;
    double since_ns;
};

/* ns of CLOCK_MONOTONIC. */
double slice_now_ns(void);
void slice_watch_launch(struct slice_watch watch, cl_event event);
/* With the lock: forgets predictions for this code that were far too short. */
void slice_doubt_late_costs(struct slice_code *code);

#endif
