/* Looking for devices and accelerators. */
#ifndef AVIARY_OPAE_ENUM_H
#define AVIARY_OPAE_ENUM_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

fpga_result fpgaEnumerate(const fpga_properties *filters, uint32_t num_filters, fpga_token *tokens, uint32_t max_tokens,
                          uint32_t *num_matches);
fpga_result fpgaCloneToken(fpga_token src, fpga_token *dst);
fpga_result fpgaDestroyToken(fpga_token *token);

#ifdef __cplusplus
}
#endif
#endif
