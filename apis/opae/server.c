/* Functions of the vendor's library with this process's part: connections from the node, and buffers by file and place. */
#include "../../fpga/opae/src/shared.h"
#include "opae_types.h"

#include <aviary/server.h>
#include <unistd.h>

/* A card is asked for through the node: this process may not connect by itself. Tokens, and so all else, come from fpgaEnumerate. */
void *opae_enumerate_function(void) {
    void (*connect_by)(int (*)(void)) = aviary_function("aviary_opae_connect_by");
    /* Another vendor's library finds its cards by itself. */
    if (connect_by)
        connect_by(aviary_card);
    return aviary_function("fpgaEnumerate");
}

static fpga_result destroy_token(fpga_token token) {
    fpga_result (*destroy)(fpga_token *) = aviary_function("fpgaDestroyToken");
    return destroy ? destroy(&token) : FPGA_NOT_SUPPORTED;
}

void *opae_destroy_token_function(void) {
    return (void *)destroy_token;
}

static fpga_result destroy_properties(fpga_properties properties) {
    fpga_result (*destroy)(fpga_properties *) = aviary_function("fpgaDestroyProperties");
    return destroy ? destroy(&properties) : FPGA_NOT_SUPPORTED;
}

void *opae_destroy_properties_function(void) {
    return (void *)destroy_properties;
}

static fpga_result share(fpga_handle handle, void *memory, uint64_t bytes, int flags, uint64_t *wsid) {
    fpga_result (*share_file)(fpga_handle, int, uint64_t, uint64_t, int, uint64_t *) = aviary_function("aviary_opae_share");
    uint64_t offset;
    int file = share_file && memory ? aviary_zerocopy_file(memory, bytes, &offset) : -1;
    fpga_result result;
    if (file < 0)
        return FPGA_NOT_SUPPORTED;
    result = share_file(handle, file, offset, bytes, flags, wsid);
    close(file);
    return result;
}

void *opae_share_function(void) {
    return (void *)share;
}

void *opae_unshare_function(void) {
    return aviary_function("fpgaReleaseBuffer");
}
