/* The threads that a runtime computes with, where sessions take turns: which CPU they have, and when.
 *
 * PoCL's computing threads of one session begin where another's have just worked, and Linux may put two of them on the same CPU, where
 * they stay for the whole slice: every launch takes twice as long. So they keep to a CPU each where sessions take turns; not if the
 * node may use some of the machine's CPUs only, because PoCL would take the first ones. */
#include "server.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* Before PoCL looks for its devices, which is when it starts its threads. */
static void place_threads(void) {
    cpu_set_t allowed;
    if (aviary_takes_turns() && sched_getaffinity(0, sizeof allowed, &allowed) == 0
        && CPU_COUNT(&allowed) == sysconf(_SC_NPROCESSORS_ONLN))
        setenv("POCL_AFFINITY", "1", 0);
}

/* When a slice ends the next session's threads wake up behind the last work of it. Ordinary threads would push that aside and go first:
 * it would end late, and its session pay for what the other one did meanwhile. Threads with this policy wait until who computes is done
 * or has had its turn. PoCL's are started by the first call that looks for devices, and take on the policy of who makes it. */
static int become_patient(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, place_threads);
    const struct sched_param none = {0};
    int policy = sched_getscheduler(0);
    int is_ordinary = policy != -1 && (policy & ~SCHED_RESET_ON_FORK) == SCHED_OTHER;
    if (!is_ordinary || !aviary_takes_turns() || sched_setscheduler(0, SCHED_BATCH | policy, &none) != 0)
        return -1;
    return policy;
}

/* `before`: what `become_patient` said. */
static void become_ordinary(int before) {
    const struct sched_param none = {0};
    if (before != -1)
        sched_setscheduler(0, before, &none);
}

cl_int opencl_find_devices(cl_platform_id platform, cl_device_type type, cl_uint entries, cl_device_id *devices, cl_uint *count) {
    int before = become_patient();
    cl_int status = clGetDeviceIDs(platform, type, entries, devices, count);
    become_ordinary(before);
    return status;
}

cl_context opencl_find_and_create(const cl_context_properties *properties, cl_device_type type,
                                  void (CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *data, cl_int *error) {
    int before = become_patient();
    cl_context context = clCreateContextFromType(properties, type, notify, data, error);
    become_ordinary(before);
    return context;
}
