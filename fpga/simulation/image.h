/*
 * The C interface of an image, the stand-in for a bitstream: target/fpga/NAME.so. `fpga/build` makes images, crates/card loads
 * them. The card is simulated; nothing here is a board's interface.
 *
 * The caller sets the inputs of the pins and steps; then the outputs are those after the clock's edge. All outputs come from
 * registers or from registers and the inputs of the same step's AXI4-Lite channels.
 */
#ifndef AVIARY_FPGA_IMAGE_H
#define AVIARY_FPGA_IMAGE_H
#include <stdint.h>

/* Changes with every change of this file. */
#define AVIARY_IMAGE_ABI 1

struct aviary_pins {
    /* --- inputs --- */
    uint8_t reset;
    uint8_t arready, awready, wready;
    uint8_t rvalid, rlast, rresp;
    uint8_t bvalid, bresp;
    uint8_t s_awvalid, s_wvalid, s_wstrb, s_bready, s_arvalid, s_rready;
    uint8_t pad0;
    uint16_t rid, bid;
    uint32_t s_address;
    uint64_t s_wdata;
    uint64_t rdata[8];
    /* --- outputs --- */
    uint8_t arvalid, arlen, awvalid, awlen, wvalid, wlast;
    uint8_t s_awready, s_wready, s_bvalid, s_bresp, s_arready, s_rvalid;
    uint8_t busy;
    uint8_t pad1[3];
    uint16_t arid, awid;
    uint32_t pad2;
    uint64_t araddr, awaddr;
    uint64_t s_rdata;
    /* Bit 4 p + v: vector v of port p was raised in this cycle. */
    uint64_t interrupt;
    uint64_t wdata[8];
};

#ifdef __cplusplus
extern "C" {
#endif
uint32_t aviary_image_abi(void);
/* The size of aviary_pins that the image was compiled with. */
uint32_t aviary_image_pins_size(void);
void *aviary_image_new(void);
void aviary_image_free(void *image);
/* One clock cycle. */
void aviary_image_step(void *image, struct aviary_pins *pins);
/* Waveforms into a file from now on; NULL ends them. 0, or -1 if the image was built without `--trace`. */
int32_t aviary_image_trace(void *image, const char *file);
#ifdef __cplusplus
}
#endif
#endif
