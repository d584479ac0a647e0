/* Functions of libopae-c beside OPAE's, for an API server: memory and connections that it has from others. */
#ifndef AVIARY_OPAE_SHARED_H
#define AVIARY_OPAE_SHARED_H
#include <opae/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As aviary_fpga_connect_by. */
void aviary_opae_connect_by(int (*connect)(void));
/* fpgaPrepareBuffer for whole pages of a file that others have mapped: a memfd that is sealed against shrinking. */
fpga_result aviary_opae_share(fpga_handle handle, int file, uint64_t offset, uint64_t len, int flags, uint64_t *wsid);

#ifdef __cplusplus
}
#endif
#endif
