/* Messages between the two sides of this API that are no functions of the driver: what several driver functions
 * have in common travels as one of these. The server's utility code implements them with the driver's own. */
#ifndef AVIARY_CUDA_MESSAGES_H
#define AVIARY_CUDA_MESSAGES_H
#include <cuda.h>

/* Where the server places device memory: nothing else is there in any process. */
#define CUDA_PLACES 0x100000000000ull
#define CUDA_PLACES_END 0x200000000000ull
/* Each device has this much of it: the lower half for what the server places, the rest for what applications map. */
#define CUDA_PLACE_BYTES (1ull << 40)
#define CUDA_PLACED_BYTES (CUDA_PLACE_BYTES / 2)

#ifdef __cplusplus
extern "C" {
#endif

/* cuInit, with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER of the application's process; NULL where they are not set. */
CUresult aviaryInitialize(unsigned int flags, const char *visible, const char *order);

/* Options of the compiler inside the driver, as far as they are numbers. */
typedef struct {
    CUjit_option option;
    unsigned int value;
} aviary_jit_option;

/* Answers of the compiler in the options' values, where it was asked: the time it took (the bits of a float, in ms), and for how
 * many threads it compiled. */
typedef struct {
    unsigned int wall_time, threads;
} aviary_jit_outputs;

/* A module or a library from an image of known size. `outputs`: NULL where the application did not ask. */
CUresult aviaryModuleLoad(CUmodule *module, const void *image, size_t bytes, const aviary_jit_option *options,
                          unsigned int option_count, aviary_jit_outputs *outputs);
CUresult aviaryLibraryLoad(CUlibrary *library, const void *image, size_t bytes, const aviary_jit_option *options,
                           unsigned int option_count, aviary_jit_outputs *outputs);

/* The compiler's log about the image that this thread loaded last: how long each text is, and its beginning. */
CUresult aviaryCompilerLog(char *information, unsigned int information_capacity, unsigned int *information_bytes, char *errors,
                           unsigned int errors_capacity, unsigned int *errors_bytes);

/* Variables of modules; those that are managed memory are read and written by name of their address. */
CUresult aviaryModuleGlobal(CUmodule module, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed);
CUresult aviaryLibraryGlobal(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes, int *managed);
CUresult aviaryLibraryManaged(CUlibrary library, const char *name, CUdeviceptr *pointer, size_t *bytes);
CUresult aviaryMapHost(CUdeviceptr base, size_t bytes);
CUresult aviaryUnmapHost(CUdeviceptr base);
CUresult aviaryReadVariable(CUdeviceptr pointer, void *to, size_t bytes);
CUresult aviaryWriteVariable(CUdeviceptr pointer, const void *from, size_t bytes);

/* The driver's linker. An input's content comes along; the image and the texts are fetched when their sizes are known. */
typedef struct {
    unsigned int information, errors;
    aviary_jit_outputs outputs;
} aviary_log_sizes;
CUresult aviaryLinkCreate(CUlinkState *state, const aviary_jit_option *options, unsigned int option_count);
CUresult aviaryLinkAdd(CUlinkState state, CUjitInputType type, const void *data, size_t bytes, const char *name,
                       const aviary_jit_option *options, unsigned int option_count);
CUresult aviaryLinkComplete(CUlinkState state, size_t *bytes);
CUresult aviaryLinkImage(CUlinkState state, void *image, size_t capacity);
CUresult aviaryLinkLog(CUlinkState state, aviary_log_sizes *sizes, char *information, unsigned int information_capacity,
                       char *errors, unsigned int errors_capacity);
CUresult aviaryLinkDestroy(CUlinkState state);

/* The parameters of a function: how many, and offset and size of each. `capacity` bounds both arrays. */
CUresult aviaryFunctionLayout(CUfunction function, unsigned int capacity, unsigned int *count, unsigned short *offsets,
                              unsigned short *sizes);

/* The attribute of a kernel that is asked for, and with it all others: `known` has a bit for each that the driver told. */
CUresult aviaryKernelAttributes(CUkernel kernel, CUdevice device, CUfunction_attribute asked, int *answer,
                                unsigned int capacity, int *values, unsigned int *known);

typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    unsigned int attribute_count;
} aviary_launch_shape;

/* Every kind of launch: the parameters as the kernel sees them, in one piece. */
CUresult aviaryLaunch(CUfunction function, aviary_launch_shape shape, CUstream stream, const void *parameters,
                      size_t bytes, const CUlaunchAttribute *attributes);

/* Writes a word behind what was given to the stream before, unless one of this thread's calls has failed and the guest does
 * not know yet: then it waits for the word in vain, asks, and is told. */
CUresult aviaryMark(CUstream stream, CUdeviceptr word, cuuint32_t value);

/* True if a kernel that prints may have been launched in the current context. */
CUresult aviaryKernelsPrint(int *print);

/* Memory that both sides share becomes, or is no longer, page-locked for the device. */
CUresult aviaryHostRegister(void *memory, size_t bytes, unsigned int flags);
CUresult aviaryHostUnregister(void *memory, size_t bytes);
/* Such memory is also, or no longer, at an address of the application's own memory: whole pages. ALREADY_MAPPED: the API server has
 * something else there. */
CUresult aviaryAdopt(void *arena, size_t bytes, CUdeviceptr at);
CUresult aviaryDisown(CUdeviceptr at, size_t bytes);
/* Bytes there become, or are no longer, page-locked for the device. */
CUresult aviaryHostRegisterAt(CUdeviceptr at, size_t bytes, unsigned int flags);
CUresult aviaryHostUnregisterAt(CUdeviceptr at);

/* An object that another process of the application can use: the name under which its API server offers it. */
typedef struct {
    unsigned long long words[3];
} aviary_shared_name;

/* Memory. */
CUresult aviaryExportMemory(CUmemGenericAllocationHandle handle, aviary_shared_name *name);
CUresult aviaryImportMemory(CUmemGenericAllocationHandle *handle, const aviary_shared_name *name);

/* The same of memory that the server placed: an allocation is a part of what is offered. */
typedef struct {
    aviary_shared_name name;
    unsigned long long offset, bytes;
} aviary_memory_part;
CUresult aviaryShareMemory(CUdeviceptr pointer, aviary_memory_part *part);
CUresult aviaryOpenMemory(CUdeviceptr *pointer, CUdevice *device, const aviary_memory_part *part);
CUresult aviaryCloseMemory(CUdeviceptr pointer);

/* Events. */
CUresult aviaryShareEvent(CUevent event, aviary_shared_name *name);
CUresult aviaryOpenEvent(CUevent *event, const aviary_shared_name *name);

/* Any copy of a box whose host sides lie at `from` and `to`; NULL: that side is no host memory. */
CUresult aviaryCopy(CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void *to, size_t to_bytes, CUstream stream);

/* Copies of ordinary memory in graphs (guest/graph_copies.c, server/graph_halves.c): the device copies from and to
 * page-locked memory that both sides share, and the guest copies between that and the application's memory, in host
 * functions around the device's copy. `number` names the copy in the guest; 0: both sides are memory that the device
 * uses in place. The addresses are the application's, for questions about the node. */
enum { AVIARY_HALF_GATHER = 1, AVIARY_HALF_SCATTER = 2, AVIARY_HALF_END = 4 };
typedef struct {
    unsigned long long number, from, to;
    /* AVIARY_HALF_GATHER, AVIARY_HALF_SCATTER or both. */
    unsigned int kinds, reserved;
} aviary_halves;
typedef void (*aviary_half_function)(unsigned int kind, unsigned long long number, void *data);
/* The guest's part of every such copy; AVIARY_HALF_END: nothing will ask for that number again. */
CUresult aviaryServeHalves(aviary_half_function function, void *data);
CUresult aviaryCaptureCopy(CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void *to, size_t to_bytes, CUstream stream,
                           aviary_halves halves);

/* Host functions of graphs come with the application's own numbers for them, for questions about the node. */
typedef struct {
    unsigned long long function, data;
} aviary_host_call;
CUresult aviaryCaptureHost(CUstream stream, CUhostFn function, void *data, aviary_host_call call);
CUresult aviaryGetHostNode(CUgraphNode node, aviary_host_call *call);

/* The nodes that a capturing stream depends on. `capacity` bounds both arrays; `count` says how many there are. */
CUresult aviaryCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                           size_t capacity, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count);

/* Textures and surfaces; `array` stands in the resource's description if that is one. */
CUresult aviaryTexture(CUtexObject *texture, const void *resource, CUarray array, const CUDA_TEXTURE_DESC *description,
                       const CUDA_RESOURCE_VIEW_DESC *view);
CUresult aviarySurface(CUsurfObject *surface, CUarray array);

/* The identity of the multiprocessors' clusters: see guest/export_tables.c. */
CUresult aviaryClusterTables(CUdevice device, unsigned int capacity, unsigned int *count, unsigned char *first,
                             unsigned char *second);

/* Nodes of graphs: one message for each kind that has more than objects for parameters. `exec` NULL: of the graph. */
CUresult aviaryAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                             *edges, size_t count, CUfunction function, aviary_launch_shape shape, const void
                             *parameters, size_t bytes);
CUresult aviarySetKernelNode(CUgraphExec exec, CUgraphNode node, CUfunction function, aviary_launch_shape shape, const
                             void *parameters, size_t bytes);
CUresult aviaryGetKernelNode(CUgraphNode node, CUfunction *function, CUkernel *kernel, CUcontext *context,
                             aviary_launch_shape *shape, unsigned int capacity, unsigned char *parameters, unsigned
                             int *bytes);
CUresult aviaryAddCopyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                           *edges, size_t count, CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void *to, size_t
                           to_bytes, CUcontext context, aviary_halves halves);
CUresult aviarySetCopyNode(CUgraphExec exec, CUgraphNode node, CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void
                           *to, size_t to_bytes, CUcontext context, aviary_halves halves);
/* The host's sides as the application named them. */
CUresult aviaryGetCopyNode(CUgraphNode node, CUDA_MEMCPY3D *copy, unsigned long long *from, unsigned long long *to);
CUresult aviaryAddFillNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                           *edges, size_t count, CUDA_MEMSET_NODE_PARAMS_v2 fill);
CUresult aviarySetFillNode(CUgraphExec exec, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v2 fill);
CUresult aviaryAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                           *edges, size_t count, CUhostFn function, void *data, aviary_host_call call);
CUresult aviarySetHostNode(CUgraphExec exec, CUgraphNode node, CUhostFn function, void *data, aviary_host_call call);
CUresult aviaryAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                       *edges, size_t count, CUgraphNodeType type, CUgraph child,
                       CUgraphChildGraphNodeOwnership ownership, CUevent event);
CUresult aviarySetNode(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUgraph child,
                       CUgraphChildGraphNodeOwnership ownership, CUevent event);
/* Memory of graphs, batches of operations on memory, conditions. */
CUresult aviaryAddAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                            size_t count, CUmemPoolProps properties, const CUmemAccessDesc *access, size_t access_count,
                            size_t bytes, CUdeviceptr *pointer);
CUresult aviaryGetAllocNode(CUgraphNode node, CUmemPoolProps *properties, size_t capacity, CUmemAccessDesc *access,
                            size_t *access_count, size_t *bytes, CUdeviceptr *pointer);
CUresult aviaryAddFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                           size_t count, CUdeviceptr pointer);
CUresult aviaryAddBatchNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                            size_t count, CUcontext context, unsigned int operation_count,
                            const CUstreamBatchMemOpParams *operations, unsigned int flags);
CUresult aviarySetBatchNode(CUgraphExec exec, CUgraphNode node, CUcontext context, unsigned int operation_count,
                            const CUstreamBatchMemOpParams *operations, unsigned int flags);
CUresult aviaryGetBatchNode(CUgraphNode node, CUcontext *context, unsigned int capacity, CUstreamBatchMemOpParams *operations,
                            unsigned int *operation_count, unsigned int *flags);
CUresult aviaryAddConditionalNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphConditionalHandle handle,
                                  CUgraphConditionalNodeType type, unsigned int size, CUgraph *bodies, CUcontext context);

#ifdef __cplusplus
}
#endif
#endif
