/* Detection of kernels that may print. The driver writes their output while it waits for them, before the application goes on, so
 * a wait has to be the driver's own where such a kernel was launched, by whichever thread and in whichever stream. Nobody
 * says of a kernel that it prints; but the driver lets the size of the buffer for it be set only as long as none that does
 * was launched, by itself or by another kernel, or is part of a graph that can be launched. So the server can ask. What
 * came since it was asked last may print. */
#include "guest/waiting.h"
#include <aviary/guest.h>
#include <stdio.h>

/* How often kernels were launched for the first time, or put into such graphs, and one more: 0 is what nobody has asked about. */
enum { NO_KERNELS = 1 };
static uint64_t kernels = NO_KERNELS;

void cuda_note_new_kernels(void) {
    __atomic_add_fetch(&kernels, 1, __ATOMIC_RELEASE);
}

static uint64_t now(void) {
    return __atomic_load_n(&kernels, __ATOMIC_ACQUIRE);
}

/* How many there were when none of them printed, and whether one of them does. Both of the only context that there is: what
 * was launched where there are several may be another's than the current one. */
static uint64_t silent;
static int prints;

int cuda_kernels_are_silent(void) {
    uint64_t when = now();
    return when == NO_KERNELS || (__atomic_load_n(&silent, __ATOMIC_ACQUIRE) == when && !cuda_has_other_contexts());
}

/* After a wait, not on the way of a launch. */
void cuda_ask_whether_kernels_print(void) {
    uint64_t when = now();
    int print = 1;
    if (__atomic_load_n(&prints, __ATOMIC_ACQUIRE) || cuda_kernels_are_silent() || cuda_has_other_contexts()
        || !cuda_has_context() || !cuda_is_stream(NULL) || aviaryKernelsPrint(&print) != CUDA_SUCCESS)
        return;
    if (print)
        __atomic_store_n(&prints, 1, __ATOMIC_RELEASE);
    else
        __atomic_store_n(&silent, when, __ATOMIC_RELEASE);
}

/* Before a call in which the driver may write what kernels printed: what the program wrote into its own stream, which the
 * driver shares with it natively, comes first, and both go where the program's descriptor leads now. Always 0. */
int cuda_flush_output(void) {
    if (cuda_kernels_are_silent())
        return 0;
    aviary_follow_output();
    if (ftrylockfile(stdout) != 0)
        return 0;
    fflush_unlocked(stdout);
    funlockfile(stdout);
    return 0;
}
