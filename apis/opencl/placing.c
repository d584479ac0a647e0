/* PoCL's computing threads of one session begin where another's have just worked, and Linux may put two of them on the same processor, where
 * they stay for the whole slice: every launch takes twice as long. So they keep to a processor each where sessions take turns; not if the
 * node may use some of the machine's processors only, because PoCL would take the first ones. */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* Before anybody asks PoCL for its devices. */
__attribute__((constructor)) static void place_threads(void) {
    cpu_set_t allowed;
    if (getenv("AVIARY_SLICE_MS") && sched_getaffinity(0, sizeof allowed, &allowed) == 0
        && CPU_COUNT(&allowed) == sysconf(_SC_NPROCESSORS_ONLN))
        setenv("POCL_AFFINITY", "1", 0);
}
