/* The processes that use a device: the tenant's programs, from its account of `device_memory`. Those that the library lists are API
 * servers, of all tenants. */
#include "nvml_server.h"
#include <aviary/server.h>
#include <string.h>

enum { MOST_PROCESSES = 1024 };

/* Stands for `no part of a device` in lists of processes. */
static const unsigned int NO_INSTANCE = 0xffffffff;

/* The tenant's programs that hold memory on the device; their number. */
static unsigned int find(nvmlDevice_t device, struct aviary_process_use *uses) {
    char shown_name[SHOWN_NAME_BYTES];
    if (!nvml_shown_name(device, shown_name, sizeof shown_name))
        return 0;
    unsigned int all = aviary_process_uses("device_memory", shown_name, uses, MOST_PROCESSES);
    return all < MOST_PROCESSES ? all : MOST_PROCESSES;
}

/* The protocol of all lists: `count` has the room, and gets the number that there is. */
static nvmlReturn_t fits(unsigned int number, unsigned int *count, const void *list) {
    unsigned int room = list ? *count : 0;
    *count = number;
    return number > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t running_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    struct aviary_process_use uses[MOST_PROCESSES];
    if (!device || !count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int number = find(device, uses);
    nvmlReturn_t result = fits(number, count, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < number; i++)
        infos[i] = (nvmlProcessInfo_v2_t){uses[i].process, uses[i].amount, NO_INSTANCE, NO_INSTANCE};
    return result;
}

void *nvml_running_v2_function(void) {
    return (void *)running_v2;
}

static nvmlReturn_t running_v1(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
    struct aviary_process_use uses[MOST_PROCESSES];
    if (!device || !count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int number = find(device, uses);
    nvmlReturn_t result = fits(number, count, infos);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < number; i++)
        infos[i] = (nvmlProcessInfo_v1_t){uses[i].process, uses[i].amount};
    return result;
}

void *nvml_running_v1_function(void) {
    return (void *)running_v1;
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned int *count, void *infos) {
    (void)infos;
    if (!device || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

void *nvml_no_processes_function(void) {
    return (void *)no_processes;
}

/* Modes: 0 compute, 1 graphics, 2 MPS. */
static nvmlReturn_t process_details(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    struct aviary_process_use uses[MOST_PROCESSES];
    if (!device || !list || list->mode > 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned int number = list->mode == 0 ? find(device, uses) : 0;
    nvmlReturn_t result = fits(number, &list->numProcArrayEntries, list->procArray);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < number; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = uses[i].process,
                                                      .usedGpuMemory = uses[i].amount,
                                                      .gpuInstanceId = NO_INSTANCE,
                                                      .computeInstanceId = NO_INSTANCE};
    return result;
}

void *nvml_process_details_function(void) {
    return (void *)process_details;
}

/* ---- What each used ------------------------------------------------------------------------------ */

static nvmlReturn_t process_utilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
                                        unsigned long long since) {
    (void)since;
    if (!device || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    (void)samples;
    *count = 0;
    return NVML_ERROR_NOT_FOUND;
}

void *nvml_process_utilization_function(void) {
    return (void *)process_utilization;
}

static nvmlReturn_t processes_utilization(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    if (!device || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    info->processSamplesCount = 0;
    return NVML_ERROR_NOT_FOUND;
}

void *nvml_processes_utilization_function(void) {
    return (void *)processes_utilization;
}

static nvmlReturn_t accounting_pids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    return no_processes(device, count, pids);
}

void *nvml_accounting_pids_function(void) {
    return (void *)accounting_pids;
}

static nvmlReturn_t accounting_stats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats) {
    (void)pid;
    return device && stats ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

void *nvml_accounting_stats_function(void) {
    return (void *)accounting_stats;
}

/* Sessions of video encoders and of screen capture name processes, too; none is a tenant's. */
static nvmlReturn_t encoder_sessions(nvmlDevice_t device, unsigned int *count, nvmlEncoderSessionInfo_t *sessions) {
    return no_processes(device, count, sessions);
}

void *nvml_encoder_sessions_function(void) {
    return (void *)encoder_sessions;
}

static nvmlReturn_t capture_sessions(nvmlDevice_t device, unsigned int *count, nvmlFBCSessionInfo_t *sessions) {
    return no_processes(device, count, sessions);
}

void *nvml_capture_sessions_function(void) {
    return (void *)capture_sessions;
}
