/* Code: the state on which answers about functions depend, images, and launches. */
#ifndef AVIARY_CUDA_FUNCTIONS_H
#define AVIARY_CUDA_FUNCTIONS_H
#include "guest/context.h"

/* entry_versions.c */
/* In which versions of CUDA (11020: 11.2) the function appeared as itself, as its _v2, _v3 and _v4; 0: there is no such form. */
struct cuda_entry_versions {
    const char *name;
    int since[4];
};
extern const struct cuda_entry_versions cuda_entry_versions[];
extern const size_t cuda_entry_count;

/* function_state.c */
void cuda_context_ended(void);
uint64_t cuda_functions_epoch(void);
void cuda_note_new_code(void);
CUfunction cuda_function(CUfunction value);
/* A mark of the state in which a function's attributes were asked for. */
uint64_t cuda_function_state(const void *handle);
/* Spreads a value's bits over all 64. */
static inline uint64_t cuda_mixed(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

/* image.c */
enum { MOST_OPTIONS = 32 };
/* The application's buffer for the compiler's output, and the place where it is told how much that was. */
struct log_buffer {
    char *text;
    unsigned int bytes;
    void **bytes_written;
};
struct log_buffers {
    struct log_buffer information, errors;
    /* Values of options that the compiler changes; NULL: not asked for. */
    void **wall_time, **threads;
};
void cuda_take_outputs(const struct log_buffers *logs, const aviary_jit_outputs *outputs);
/* The options that are numbers, of at most MOST_OPTIONS; of the buffers for the compiler's output their sizes. How many. */
unsigned int cuda_option_numbers(unsigned int count, const CUjit_option *options, void **values, aviary_jit_option *to,
                                 struct log_buffers *logs);
void cuda_take_log(struct log_buffer *log, const char *text, unsigned int bytes);
/* The content of a file, to be freed; NULL: it cannot be read. */
void *cuda_read_file(const char *path, size_t *size);

/* launch.c */
CUresult cuda_pack(CUfunction function, void **parameters, void **extra, unsigned char *buffer, const void **packed,
                   size_t *bytes);
CUresult cuda_launch_ex(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);

#endif
