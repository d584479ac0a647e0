/* What libonnxruntime exports beside OrtGetApiBase. ONNX Runtime declares it in cpu_provider_factory.h, which no package has; Java's
 * binding is linked to it. */
#ifndef ONNXRUNTIME_PROVIDERS_H
#define ONNXRUNTIME_PROVIDERS_H

#include <onnxruntime_c_api.h>
#include <stddef.h>
#include <stdint.h>

OrtStatus *OrtSessionOptionsAppendExecutionProvider_CPU(OrtSessionOptions *options, int use_arena);

/* Aviary's own, for its guest library: a session of a model with files of weights (external.h), or of which the library saves files;
 * the next bytes of a file that was saved for the session (enum saved_file of external.h), none: it
 * ends; what the name of its profile has behind the application's prefix; the end of the profile. */
OrtStatus *aviary_onnxruntime_create_session(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options,
                                             const void *external, size_t external_size, uint32_t saves, OrtSession **out);
/* What the library says behind "Load model from PATH failed:" of a model that it cannot load; empty if that is not why there is no
 * session. */
OrtStatus *aviary_onnxruntime_load_error(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, char *to,
                                         size_t room);
OrtStatus *aviary_onnxruntime_saved_file(const OrtSession *session, uint32_t which, uint8_t *to, size_t room, size_t *size);
OrtStatus *aviary_onnxruntime_profile_ending(const OrtSession *session, char *to, size_t room);
OrtStatus *aviary_onnxruntime_end_profile(OrtSession *session);
/* The memory of a tensor, and what its type is described by, under handles that the guest names. */
OrtStatus *aviary_onnxruntime_memory(const OrtValue *value, OrtMemoryInfo **out);
OrtStatus *aviary_onnxruntime_description(const OrtTypeInfo *type, OrtTensorTypeAndShapeInfo **out);

#endif
