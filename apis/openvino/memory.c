/* What the application frees: memory of its own C library. */
#include <aviary/guest.h>
#include <stdlib.h>
#include <string.h>

#include "openvino_types.h"

void end_text(const char *text) {
    free((void *)(uintptr_t)text);
}

ov_status_e make_shape(int64_t rank, const int64_t *dims, ov_shape_t *to) {
    if (!to || rank <= 0)
        return INVALID_C_PARAM;
    for (int64_t i = 0; dims && i < rank; i++)
        if (dims[i] < 0)
            return INVALID_C_PARAM;
    int64_t *made = calloc((size_t)rank, sizeof *made);
    if (!made)
        return UNKNOW_EXCEPTION;
    if (dims)
        memcpy(made, dims, (size_t)rank * sizeof *made);
    *to = (ov_shape_t){rank, made};
    return OK;
}

ov_status_e end_shape(ov_shape_t *shape) {
    if (!shape)
        return INVALID_C_PARAM;
    free(shape->dims);
    *shape = (ov_shape_t){0, NULL};
    return OK;
}

void end_partial_shape(ov_partial_shape_t *shape) {
    if (!shape)
        return;
    free(shape->dims);
}

void end_version(ov_version_t *version) {
    if (!version)
        return;
    end_text(version->buildNumber);
    end_text(version->description);
    *version = (ov_version_t){NULL, NULL};
}

void end_versions(ov_core_version_list_t *list) {
    if (!list || !list->versions)
        return;
    for (size_t i = 0; i < list->size; i++) {
        end_text(list->versions[i].device_name);
        end_version(&list->versions[i].version);
    }
    free(list->versions);
    list->versions = NULL;
}

void end_devices(ov_available_devices_t *list) {
    if (!list || !list->devices)
        return;
    for (size_t i = 0; i < list->size; i++)
        free(list->devices[i]);
    free(list->devices);
    *list = (ov_available_devices_t){NULL, 0};
}

void end_profile(ov_profiling_info_list_t *list) {
    if (!list || !list->profiling_infos)
        return;
    for (size_t i = 0; i < list->size; i++) {
        end_text(list->profiling_infos[i].node_name);
        end_text(list->profiling_infos[i].exec_type);
        end_text(list->profiling_infos[i].node_type);
    }
    free(list->profiling_infos);
    *list = (ov_profiling_info_list_t){NULL, 0};
}
