// An image: the verilated top behind the C interface of image.h.
#include "image.h"
#include "Vtop.h"
#include "verilated.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
#endif
#include <cstring>
#include <memory>

namespace {
struct Image {
    VerilatedContext context;
    Vtop top;
    vluint64_t half_cycles = 0;
#if VM_TRACE_FST
    std::unique_ptr<VerilatedFstC> trace;
#endif
    Image() : top(&context, "top") {
        context.randReset(0);
        context.traceEverOn(true);
        top.clk = 0;
        top.reset = 1;
    }
    void evaluate(int clk) {
        top.clk = clk;
        top.eval();
#if VM_TRACE_FST
        if (trace) trace->dump(half_cycles);
#endif
        half_cycles++;
    }
};
}  // namespace

extern "C" uint32_t aviary_image_abi(void) { return AVIARY_IMAGE_ABI; }
extern "C" uint32_t aviary_image_pins_size(void) { return sizeof(struct aviary_pins); }
extern "C" void *aviary_image_new(void) { return new Image; }
extern "C" void aviary_image_free(void *image) { delete static_cast<Image *>(image); }

extern "C" int32_t aviary_image_trace(void *image, const char *file) {
#if VM_TRACE_FST
    Image &self = *static_cast<Image *>(image);
    if (self.trace) self.trace->close();
    self.trace.reset();
    if (file) {
        self.trace = std::make_unique<VerilatedFstC>();
        self.top.trace(self.trace.get(), 99);
        self.trace->open(file);
    }
    return 0;
#else
    (void)image;
    return file ? -1 : 0;
#endif
}

extern "C" void aviary_image_step(void *image, struct aviary_pins *pins) {
    Image &self = *static_cast<Image *>(image);
    Vtop &top = self.top;
    top.reset = pins->reset;
    top.arready = pins->arready;
    top.awready = pins->awready;
    top.wready = pins->wready;
    top.rvalid = pins->rvalid;
    top.rlast = pins->rlast;
    top.rresp = pins->rresp;
    top.rid = pins->rid;
    if (pins->rvalid) std::memcpy(&top.rdata, pins->rdata, sizeof pins->rdata);
    top.bvalid = pins->bvalid;
    top.bresp = pins->bresp;
    top.bid = pins->bid;
    top.s_awvalid = pins->s_awvalid;
    top.s_wvalid = pins->s_wvalid;
    top.s_awaddr = pins->s_address;
    top.s_araddr = pins->s_address;
    top.s_wdata = pins->s_wdata;
    top.s_wstrb = pins->s_wstrb;
    top.s_bready = pins->s_bready;
    top.s_arvalid = pins->s_arvalid;
    top.s_rready = pins->s_rready;
    self.evaluate(1);
    self.evaluate(0);
    pins->arvalid = top.arvalid;
    pins->arid = top.arid;
    pins->araddr = top.araddr;
    pins->arlen = top.arlen;
    pins->awvalid = top.awvalid;
    pins->awid = top.awid;
    pins->awaddr = top.awaddr;
    pins->awlen = top.awlen;
    pins->wvalid = top.wvalid;
    pins->wlast = top.wlast;
    if (pins->wvalid) std::memcpy(pins->wdata, &top.wdata, sizeof pins->wdata);
    pins->s_awready = top.s_awready;
    pins->s_wready = top.s_wready;
    pins->s_bvalid = top.s_bvalid;
    pins->s_bresp = top.s_bresp;
    pins->s_arready = top.s_arready;
    pins->s_rvalid = top.s_rvalid;
    pins->s_rdata = top.s_rdata;
    pins->interrupt = top.irq;
    pins->busy = top.busy;
}
