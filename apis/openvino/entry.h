/* OpenVINO's headers, and functions of Aviary's own. */
#ifndef AVIARY_OPENVINO_ENTRY_H
#define AVIARY_OPENVINO_ENTRY_H

/* As openvino.h has it. */
#define BOOLEAN OV_BOOLEAN
#include <openvino/c/ov_common.h>
/* The names of properties: pointers that nobody changes. */
#undef OPENVINO_C_VAR
#define OPENVINO_C_VAR(...) extern __VA_ARGS__ const

/* Two functions take one key and one value as `...`, without a number of them: to their callers that is the same as two parameters. */
#define ov_core_set_property(core, device, rest) ov_core_set_property(core, device, const char *key, const void *value)
#define ov_compiled_model_set_property(model, rest) ov_compiled_model_set_property(model, const char *key, const void *value)
#include <openvino/c/openvino.h>
#include <openvino/c/gpu/gpu_plugin_properties.h>
#undef ov_core_set_property
#undef ov_compiled_model_set_property

/* A model that the guest has read; `model` NULL: it could not. */
ov_status_e aviary_openvino_read(const ov_core_t *core, const void *model, size_t model_bytes, const void *weights,
                                 size_t weight_bytes, ov_model_t **to);
/* What ov_compiled_model_export_model writes. */
ov_status_e aviary_openvino_export(const ov_compiled_model_t *model, char **content, size_t *bytes);
/* What a tensor has now. */
ov_status_e aviary_openvino_content(const ov_tensor_t *tensor, void **data, size_t *bytes);
/* An inference that is started, and waited for. */
ov_status_e aviary_openvino_infer(ov_infer_request_t *request);

#endif
