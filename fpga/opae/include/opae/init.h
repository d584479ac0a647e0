/* Beginning and end; neither is needed. */
#ifndef AVIARY_OPAE_INIT_H
#define AVIARY_OPAE_INIT_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

fpga_result fpgaInitialize(const char *config_file);
fpga_result fpgaFinalize(void);

#ifdef __cplusplus
}
#endif
#endif
