/* `cuGetProcAddress`: this library's own functions, by name and by the version of CUDA that the caller was made for. */
#include "guest/functions.h"
#include <string.h>
#include <stdio.h>

static const char *suffixes[] = {"", "_v2", "_v3", "_v4"};

/* The name of the variant for `version`; NULL if that version is too old for any. */
static const char *variant(const char *name, int version, char *buffer, size_t capacity) {
    /* The plain name means another function since CUDA 12. */
    if (strcmp(name, "cuGraphInstantiate") == 0 && version >= 12000)
        return "cuGraphInstantiateWithFlags";
    for (size_t i = 0; i < cuda_entry_count; i++) {
        if (strcmp(cuda_entry_versions[i].name, name) != 0)
            continue;
        int newest = -1;
        for (int v = 0; v < 4 && cuda_entry_versions[i].since[v]; v++)
            if (cuda_entry_versions[i].since[v] <= version)
                newest = v;
        if (newest < 0)
            return NULL;
        snprintf(buffer, capacity, "%s%s", name, suffixes[newest]);
        return buffer;
    }
    return name;
}

/* The same function for threads that have default streams of their own, if there is one. */
static void *per_thread(const char *name) {
    static const char *forms[] = {"_ptsz", "_ptds"};
    char buffer[160];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        snprintf(buffer, sizeof buffer, "%s%s", name, forms[i]);
        void *address = aviary_function(buffer);
        if (address)
            return address;
    }
    return NULL;
}

CUresult cuda_entry_point(const char *symbol, void **address, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    CUdriverProcAddressQueryResult ignored;
    CUdriverProcAddressQueryResult *result = status ? status : &ignored;
    char buffer[128];
    if (!symbol || !address || strlen(symbol) > 96
        || (flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)))
        return CUDA_ERROR_INVALID_VALUE;
    *address = NULL;
    *result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const char *name = variant(symbol, version, buffer, sizeof buffer);
    if (!name)
        *result = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    else if (strncmp(name, "cu", 2) == 0) {
        if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
            *address = per_thread(name);
        if (!*address)
            *address = aviary_function(name);
    }
    if (*address) {
        *result = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    /* Callers that ask for the status learn the reason from it. */
    return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
