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

/* A module or a library from an image of known size. */
CUresult aviaryModuleLoad(CUmodule *module, const void *image, size_t bytes, const aviary_jit_option *options,
                          unsigned int option_count);
CUresult aviaryLibraryLoad(CUlibrary *library, const void *image, size_t bytes, const aviary_jit_option *options,
                           unsigned int option_count);

/* The compiler's log about the image that this thread loaded last: how long each text is, and its beginning. */
CUresult aviaryCompilerLog(char *information, unsigned int information_capacity, unsigned int *information_bytes,
                           char *errors, unsigned int errors_capacity, unsigned int *errors_bytes);

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

/* The dependencies of a capturing stream. `capacity` bounds both arrays; `count` says how many there are. */
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
                           to_bytes, CUcontext context);
CUresult aviarySetCopyNode(CUgraphExec exec, CUgraphNode node, CUDA_MEMCPY3D copy, void *from, size_t from_bytes, void
                           *to, size_t to_bytes, CUcontext context);
CUresult aviaryAddFillNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                           *edges, size_t count, CUDA_MEMSET_NODE_PARAMS_v2 fill);
CUresult aviarySetFillNode(CUgraphExec exec, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v2 fill);
CUresult aviaryAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                           *edges, size_t count, CUhostFn function, void *data);
CUresult aviarySetHostNode(CUgraphExec exec, CUgraphNode node, CUhostFn function, void *data);
CUresult aviaryAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData
                       *edges, size_t count, CUgraphNodeType type, CUgraph child,
                       CUgraphChildGraphNodeOwnership ownership, CUevent event);
CUresult aviarySetNode(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUgraph child,
                       CUgraphChildGraphNodeOwnership ownership, CUevent event);

#ifdef __cplusplus
}
#endif
#endif
