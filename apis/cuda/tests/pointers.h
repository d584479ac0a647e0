/* This API's part of tests/pointers: objects to call its functions with, and a question that its API server answers. */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

static CUcontext pointers_context;

/* The driver checks them; this test sees that it does. */
static void addresses_of_the_api(void) { addresses("CUdeviceptr"); }

static void ended(void *data) { (void)data; }

static int setup(void) {
    static const char *const image = ".version 7.0\n.target sm_52\n.address_size 64\n"
                                     ".visible .entry k(.param .u64 to) { ret; }\n";
    CUstream stream;
    CUevent event;
    CUdeviceptr memory;
    CUgraph graph;
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    CUlinkState link;
    CUgraphNode node, kernel_node;
    CUgraphExec exec;
    CUmemoryPool pool;
    CUuserObject object;
    CUdevResource part;
    CUdevResourceDesc description;
    CUgreenCtx green;
    void *parameters[] = {&memory};
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v4(&pointers_context, NULL, 0, 0) != CUDA_SUCCESS
        || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS || cuEventCreate(&event, 0) != CUDA_SUCCESS
        || cuMemAlloc_v2(&memory, 4096) != CUDA_SUCCESS || cuGraphCreate(&graph, 0) != CUDA_SUCCESS
        || cuModuleLoadData(&module, image) != CUDA_SUCCESS
        || cuModuleGetFunction(&function, module, "k") != CUDA_SUCCESS)
        return 0;
    CUDA_KERNEL_NODE_PARAMS shape = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
                                     .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
    if (cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS
        || cuLibraryGetKernel(&kernel, library, "k") != CUDA_SUCCESS
        || cuLinkCreate_v2(0, NULL, NULL, &link) != CUDA_SUCCESS
        || cuGraphAddEmptyNode(&node, graph, NULL, 0) != CUDA_SUCCESS
        || cuGraphAddKernelNode_v2(&kernel_node, graph, &node, 1, &shape) != CUDA_SUCCESS
        || cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS
        || cuDeviceGetDefaultMemPool(&pool, 0) != CUDA_SUCCESS
        || cuUserObjectCreate(&object, NULL, ended, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS
        || cuDeviceGetDevResource(0, &part, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS
        || cuDevResourceGenerateDesc(&description, &part, 1) != CUDA_SUCCESS
        || cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS)
        return 0;
    known("CUuserObject", (uint64_t)object);
    known("CUdevResourceDesc", (uint64_t)description);
    known("CUgreenCtx", (uint64_t)green);
    known("CUlibrary", (uint64_t)library);
    known("CUkernel", (uint64_t)kernel);
    known("CUlinkState", (uint64_t)link);
    known("CUgraphNode", (uint64_t)kernel_node);
    known("CUgraphExec", (uint64_t)exec);
    known("CUmemoryPool", (uint64_t)pool);
    known("CUdevice", 0);
    known("CUcontext", (uint64_t)pointers_context);
    known("CUstream", (uint64_t)stream);
    known("CUevent", (uint64_t)event);
    known("CUdeviceptr", memory);
    known("CUgraph", (uint64_t)graph);
    known("CUmodule", (uint64_t)module);
    known("CUfunction", (uint64_t)function);
    return 1;
}

static void each_thread(void) { cuCtxSetCurrent(pointers_context); }

/* Not remembered, and answered by the driver. */
static int alive(void) {
    unsigned int flags;
    return cuCtxGetFlags(&flags) != CUDA_ERROR_DEVICE_UNAVAILABLE;
}
