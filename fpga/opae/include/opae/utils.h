/* Results in words. */
#ifndef AVIARY_OPAE_UTILS_H
#define AVIARY_OPAE_UTILS_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

const char *fpgaErrStr(fpga_result e);

#ifdef __cplusplus
}
#endif
#endif
