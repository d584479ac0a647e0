/* Functions of the guest's utility code that the specification calls. */
#ifndef AVIARY_OPAE_GUEST_H
#define AVIARY_OPAE_GUEST_H
#include <opae/types.h>

const char *opae_words(fpga_result result);
fpga_result opae_destroy_token(fpga_token *token);
fpga_result opae_destroy_properties(fpga_properties *properties);
fpga_result opae_prepare(fpga_handle handle, uint64_t len, void **buf_addr, uint64_t *wsid, int flags);
fpga_result opae_release(fpga_handle handle, uint64_t wsid);
void opae_forget(fpga_handle handle);
fpga_result opae_children(fpga_handle handle, uint32_t max_children, const fpga_handle *children, uint32_t *num_children);
fpga_result opae_no_pointer(uint64_t **pointer);

#endif
