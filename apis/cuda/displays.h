/* Functions of libcuda.so.1 that cuda.h does not declare: those of cudaProfiler.h, and those that share memory with
 * OpenGL, EGL and VDPAU, whose own headers need a display's. Programs look them up by name when they start. */
#ifndef AVIARY_CUDA_DISPLAYS_H
#define AVIARY_CUDA_DISPLAYS_H
#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

CUresult cuProfilerInitialize(const char *configuration, const char *output, int mode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

CUresult cuGLInit(void);
CUresult cuGLGetDevices(unsigned int *count, CUdevice *devices, unsigned int capacity, int list);
CUresult cuGLGetDevices_v2(unsigned int *count, CUdevice *devices, unsigned int capacity, int list);
CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuGLRegisterBufferObject(unsigned int buffer);
CUresult cuGLUnregisterBufferObject(unsigned int buffer);
CUresult cuGLSetBufferObjectMapFlags(unsigned int buffer, unsigned int flags);
CUresult cuGLMapBufferObject_v2(CUdeviceptr *pointer, size_t *bytes, unsigned int buffer);
CUresult cuGLMapBufferObjectAsync_v2(CUdeviceptr *pointer, size_t *bytes, unsigned int buffer, CUstream stream);
CUresult cuGLUnmapBufferObject(unsigned int buffer);
CUresult cuGLUnmapBufferObjectAsync(unsigned int buffer, CUstream stream);
CUresult cuGraphicsGLRegisterBuffer(CUgraphicsResource *resource, unsigned int buffer, unsigned int flags);
CUresult cuGraphicsGLRegisterImage(CUgraphicsResource *resource, unsigned int image, unsigned int target,
                                   unsigned int flags);

CUresult cuGraphicsEGLRegisterImage(CUgraphicsResource *resource, void *image, unsigned int flags);
CUresult cuGraphicsResourceGetMappedEglFrame(void *frame, CUgraphicsResource resource, unsigned int index,
                                             unsigned int level);
CUresult cuEventCreateFromEGLSync(CUevent *event, void *sync, unsigned int flags);
CUresult cuEGLStreamConsumerConnect(void *connection, void *stream);
CUresult cuEGLStreamConsumerConnectWithFlags(void *connection, void *stream, unsigned int flags);
CUresult cuEGLStreamConsumerDisconnect(void *connection);
CUresult cuEGLStreamConsumerAcquireFrame(void *connection, CUgraphicsResource *resource, CUstream *stream,
                                         unsigned int timeout);
CUresult cuEGLStreamConsumerReleaseFrame(void *connection, CUgraphicsResource resource, CUstream *stream);
CUresult cuEGLStreamProducerConnect(void *connection, void *stream, int width, int height);
CUresult cuEGLStreamProducerDisconnect(void *connection);

CUresult cuVDPAUGetDevice(CUdevice *device, unsigned int display, void *lookup);
CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, unsigned int display, void *lookup);
CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, unsigned int display,
                             void *lookup);
CUresult cuGraphicsVDPAURegisterVideoSurface(CUgraphicsResource *resource, unsigned int surface, unsigned int flags);
CUresult cuGraphicsVDPAURegisterOutputSurface(CUgraphicsResource *resource, unsigned int surface, unsigned int flags);

#ifdef __cplusplus
}
#endif
#endif
