/* Messages between the two sides of this API that are no functions of OPAE. The server's utility code implements them. */
#ifndef AVIARY_OPAE_MESSAGES_H
#define AVIARY_OPAE_MESSAGES_H
#include <opae/fpga.h>

#ifdef __cplusplus
extern "C" {
#endif

/* fpgaDestroyToken and fpgaDestroyProperties without the pointer to the application's variable. */
fpga_result aviaryDestroyToken(fpga_token token);
fpga_result aviaryDestroyProperties(fpga_properties properties);

/* fpgaPrepareBuffer with whole pages of zero-copy memory, and the end of that. */
fpga_result aviaryShareBuffer(fpga_handle handle, void *memory, uint64_t bytes, int flags, uint64_t *wsid);
fpga_result aviaryUnshareBuffer(fpga_handle handle, uint64_t wsid);

#ifdef __cplusplus
}
#endif
#endif
