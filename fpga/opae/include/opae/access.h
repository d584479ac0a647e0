/* Opening, closing and resetting an accelerator. */
#ifndef AVIARY_OPAE_ACCESS_H
#define AVIARY_OPAE_ACCESS_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

fpga_result fpgaOpen(fpga_token token, fpga_handle *handle, int flags);
fpga_result fpgaGetChildren(fpga_handle handle, uint32_t max_children, fpga_handle *children, uint32_t *num_children);
fpga_result fpgaClose(fpga_handle handle);
fpga_result fpgaReset(fpga_handle handle);

#ifdef __cplusplus
}
#endif
#endif
