/* Messages to an accelerator past its registers: not supported. */
#ifndef AVIARY_OPAE_UMSG_H
#define AVIARY_OPAE_UMSG_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

fpga_result fpgaGetNumUmsg(fpga_handle handle, uint64_t *value);
fpga_result fpgaSetUmsgAttributes(fpga_handle handle, uint64_t value);
fpga_result fpgaTriggerUmsg(fpga_handle handle, uint64_t value);
fpga_result fpgaGetUmsgPtr(fpga_handle handle, uint64_t **umsg_ptr);

#ifdef __cplusplus
}
#endif
#endif
