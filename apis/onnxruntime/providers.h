/* What libonnxruntime exports beside OrtGetApiBase. ONNX Runtime declares it in cpu_provider_factory.h, which no package has; Java's
 * binding is linked to it. */
#ifndef ONNXRUNTIME_PROVIDERS_H
#define ONNXRUNTIME_PROVIDERS_H

#include <onnxruntime_c_api.h>
#include <stddef.h>
#include <stdint.h>

OrtStatus *OrtSessionOptionsAppendExecutionProvider_CPU(OrtSessionOptions *options, int use_arena);

/* Aviary's own, for its guest library: the next bytes of the optimized model that was saved when the session was made. None: it ends. */
OrtStatus *aviary_onnxruntime_saved_model(const OrtSession *session, uint8_t *to, size_t room, size_t *size);

#endif
