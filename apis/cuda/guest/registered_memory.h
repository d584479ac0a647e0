/* The application's own memory whose pages the device uses in place: they become pages of the arena, at the same addresses. */
#ifndef AVIARY_CUDA_REGISTERED_MEMORY_H
#define AVIARY_CUDA_REGISTERED_MEMORY_H
#include "guest/ranges.h"

/* ---- page_exchange.c: whole pages of this process ------------------------------------------- */

/* A part of pages that still are the arena's; `at` in units of bytes from their first. */
struct cuda_page_run {
    size_t at, bytes;
};
/* What of an exchange is still in place. `elsewhere`: pages of it are mapped at other addresses, or otherwise than they were. */
struct cuda_page_runs {
    struct cuda_page_run *runs;
    size_t count;
    int elsewhere;
};

int cuda_pages_can_be_exchanged(void);
int cuda_pages_are_private(uintptr_t base, size_t bytes);
int cuda_find_page_runs(const char *at, const char *arena, size_t bytes, struct cuda_page_runs *found);
int cuda_pages_to_arena(char *at, char *arena, size_t bytes);
int cuda_pages_from_arena(char *at, const struct cuda_page_run *run);
int cuda_pages_copied_in_child(char *at, const struct cuda_page_run *run);
void cuda_pages_follow_forks(char *at, const struct cuda_page_run *run, int follow);

#endif
