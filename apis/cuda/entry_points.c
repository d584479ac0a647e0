/* `cuGetProcAddress`: this library's own functions, by name and by the version of CUDA that the caller was made for. */
#include "guest.h"
#include <string.h>
#include <stdio.h>

/* Functions of which there are several: since which version each exists, in order of their suffixes (none, _v2, ...).
 * The versions are those of cudaTypedefs.h. */
static const struct {
    const char *name;
    int since[4];
} variants[] = {
    {"cuArray3DCreate", {2000, 3020}},
    {"cuArray3DGetDescriptor", {2000, 3020}},
    {"cuArrayCreate", {2000, 3020}},
    {"cuArrayGetDescriptor", {2000, 3020}},
    {"cuCtxCreate", {2000, 3020, 11040, 12050}},
    {"cuCtxDestroy", {2000, 4000}},
    {"cuCtxGetDevice", {2000, 13000}},
    {"cuCtxPopCurrent", {2000, 4000}},
    {"cuCtxPushCurrent", {2000, 4000}},
    {"cuCtxSynchronize", {2000, 13000}},
    {"cuDeviceGetUuid", {9020, 11040}},
    {"cuDevicePrimaryCtxRelease", {7000, 11000}},
    {"cuDevicePrimaryCtxReset", {7000, 11000}},
    {"cuDevicePrimaryCtxSetFlags", {7000, 11000}},
    {"cuDeviceTotalMem", {2000, 3020}},
    {"cuEventDestroy", {2000, 4000}},
    {"cuEventElapsedTime", {2000, 12080}},
    {"cuGetProcAddress", {11030, 12000}},
    {"cuGraphAddDependencies", {10000, 12030}},
    {"cuGraphAddKernelNode", {10000, 12000}},
    {"cuGraphAddNode", {12020, 12030}},
    {"cuGraphExecKernelNodeSetParams", {10010, 12000}},
    {"cuGraphExecUpdate", {10020, 12000}},
    {"cuGraphGetEdges", {10000, 12030}},
    {"cuGraphKernelNodeGetParams", {10000, 12000}},
    {"cuGraphKernelNodeSetParams", {10000, 12000}},
    {"cuGraphNodeGetDependencies", {10000, 12030}},
    {"cuGraphNodeGetDependentNodes", {10000, 12030}},
    {"cuGraphRemoveDependencies", {10000, 12030}},
    {"cuGraphicsResourceGetMappedPointer", {3000, 3020}},
    {"cuGraphicsResourceSetMapFlags", {3000, 6050}},
    {"cuIpcOpenMemHandle", {4010, 11000}},
    {"cuLinkAddData", {5050, 6050}},
    {"cuLinkAddFile", {5050, 6050}},
    {"cuLinkCreate", {5050, 6050}},
    {"cuMemAdvise", {8000, 12020}},
    {"cuMemAlloc", {2000, 3020}},
    {"cuMemAllocHost", {2000, 3020}},
    {"cuMemAllocPitch", {2000, 3020}},
    {"cuMemFree", {2000, 3020}},
    {"cuMemGetAddressRange", {2000, 3020}},
    {"cuMemGetInfo", {2000, 3020}},
    {"cuMemHostGetDevicePointer", {2020, 3020}},
    {"cuMemHostRegister", {4000, 6050}},
    {"cuMemPrefetchAsync", {8000, 12020}},
    {"cuMemcpy2D", {2000, 3020}},
    {"cuMemcpy2DAsync", {2000, 3020}},
    {"cuMemcpy2DUnaligned", {2000, 3020}},
    {"cuMemcpy3D", {2000, 3020}},
    {"cuMemcpy3DAsync", {2000, 3020}},
    {"cuMemcpy3DBatchAsync", {12080, 13000}},
    {"cuMemcpyAtoA", {2000, 3020}},
    {"cuMemcpyAtoD", {2000, 3020}},
    {"cuMemcpyAtoH", {2000, 3020}},
    {"cuMemcpyAtoHAsync", {2000, 3020}},
    {"cuMemcpyBatchAsync", {12080, 13000}},
    {"cuMemcpyDtoA", {2000, 3020}},
    {"cuMemcpyDtoD", {2000, 3020}},
    {"cuMemcpyDtoDAsync", {3000, 3020}},
    {"cuMemcpyDtoH", {2000, 3020}},
    {"cuMemcpyDtoHAsync", {2000, 3020}},
    {"cuMemcpyHtoA", {2000, 3020}},
    {"cuMemcpyHtoAAsync", {2000, 3020}},
    {"cuMemcpyHtoD", {2000, 3020}},
    {"cuMemcpyHtoDAsync", {2000, 3020}},
    {"cuMemsetD16", {2000, 3020}},
    {"cuMemsetD2D16", {2000, 3020}},
    {"cuMemsetD2D32", {2000, 3020}},
    {"cuMemsetD2D8", {2000, 3020}},
    {"cuMemsetD32", {2000, 3020}},
    {"cuMemsetD8", {2000, 3020}},
    {"cuModuleGetGlobal", {2000, 3020}},
    {"cuStreamBatchMemOp", {8000, 11070}},
    {"cuStreamBeginCapture", {10000, 10010}},
    {"cuStreamDestroy", {2000, 4000}},
    {"cuStreamGetCaptureInfo", {10010, 11030, 12030}},
    {"cuStreamGetCtx", {9020, 12050}},
    {"cuStreamUpdateCaptureDependencies", {11030, 12030}},
    {"cuStreamWaitValue32", {8000, 11070}},
    {"cuStreamWaitValue64", {9000, 11070}},
    {"cuStreamWriteValue32", {8000, 11070}},
    {"cuStreamWriteValue64", {9000, 11070}},
    {"cuTexRefGetAddress", {2000, 3020}},
    {"cuTexRefSetAddress", {2000, 3020}},
    {"cuTexRefSetAddress2D", {2020, 3020, 4010}},
    /* The plain name means another function since CUDA 12. */
    {"cuGraphInstantiate", {10000, 11000, 0, 0}},
};

static const char *suffixes[] = {"", "_v2", "_v3", "_v4"};

/* The name of the variant for `version`; NULL if that version is too old for any. */
static const char *variant(const char *name, int version, char *buffer, size_t capacity) {
    if (strcmp(name, "cuGraphInstantiate") == 0 && version >= 12000)
        return "cuGraphInstantiateWithFlags";
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if (strcmp(variants[i].name, name) != 0)
            continue;
        int newest = -1;
        for (int v = 0; v < 4 && variants[i].since[v]; v++)
            if (variants[i].since[v] <= version)
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
