/* Results in words; of the guest library of apis/opae, too, which has them when its API server is gone. */
#ifndef AVIARY_OPAE_WORDS_H
#define AVIARY_OPAE_WORDS_H
#include <opae/types_enum.h>

static inline const char *words_of(fpga_result e)
{
    switch (e) {
    case FPGA_OK: return "success";
    case FPGA_INVALID_PARAM: return "invalid parameter";
    case FPGA_BUSY: return "resource busy";
    case FPGA_EXCEPTION: return "exception";
    case FPGA_NOT_FOUND: return "not found";
    case FPGA_NO_MEMORY: return "no memory";
    case FPGA_NOT_SUPPORTED: return "not supported";
    case FPGA_NO_DRIVER: return "no driver available";
    case FPGA_NO_DAEMON: return "no fpga daemon running";
    case FPGA_NO_ACCESS: return "insufficient privileges";
    case FPGA_RECONF_ERROR: return "reconfiguration error";
    default: return "unknown error";
    }
}

#endif
