/* Clocks of an accelerator: not supported. */
#ifndef AVIARY_OPAE_USERCLK_H
#define AVIARY_OPAE_USERCLK_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

fpga_result fpgaSetUserClock(fpga_handle handle, uint64_t high_clk, uint64_t low_clk, int flags);
fpga_result fpgaGetUserClock(fpga_handle handle, uint64_t *high_clk, uint64_t *low_clk, int flags);

#ifdef __cplusplus
}
#endif
#endif
