/* All of the OPAE C API. */
#ifndef AVIARY_OPAE_FPGA_H
#define AVIARY_OPAE_FPGA_H
#include <opae/access.h>
#include <opae/buffer.h>
#include <opae/enum.h>
#include <opae/error.h>
#include <opae/event.h>
#include <opae/init.h>
#include <opae/manage.h>
#include <opae/metrics.h>
#include <opae/mmio.h>
#include <opae/properties.h>
#include <opae/sysobject.h>
#include <opae/types.h>
#include <opae/umsg.h>
#include <opae/userclk.h>
#include <opae/utils.h>
#include <opae/version.h>
#endif
