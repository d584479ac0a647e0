/* Results, words for them, and versions. */
#include "objects.h"
#include <opae/log.h>
#include "words.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The release of OPAE whose declarations these are. */
#define MAJOR 2
#define MINOR 13
#define PATCH 0
#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number

fpga_result result_of(int error, const char *function)
{
    if (error && function)
        fprintf(stderr, "libopae-c: %s: %s\n", function, aviary_fpga_explain(error));
    switch (-error) {
    case 0: return FPGA_OK;
    case EDESTADDRREQ:
    case EAFNOSUPPORT:
    case ECONNREFUSED:
    case ENXIO:
    case ENODEV:
    case ENOTSUP:
    case ENOPKG:
    case EPROTONOSUPPORT: return FPGA_NO_DRIVER;
    case ENOENT: return FPGA_NOT_FOUND;
    case EACCES: return FPGA_NO_ACCESS;
    case EUSERS:
    case EAGAIN:
    case ENOSPC:
    case EADDRINUSE:
    case EBUSY: return FPGA_BUSY;
    case E2BIG:
    case EMFILE:
    case ENOLCK:
    case ENOMEM: return FPGA_NO_MEMORY;
    case EFAULT:
    case EEXIST:
    case EINVAL: return FPGA_INVALID_PARAM;
    default: return FPGA_EXCEPTION;
    }
}

EXPORTED const char *fpgaErrStr(fpga_result e)
{
    return words_of(e);
}

/* Errors go to standard error, all else to standard output, up to the level that LIBOPAE_LOG names. */
EXPORTED void opae_print(int loglevel, const char *fmt, ...)
{
    const char *most = getenv("LIBOPAE_LOG");
    va_list arguments;

    if (loglevel > (most ? atoi(most) : 0))
        return;
    va_start(arguments, fmt);
    vfprintf(loglevel <= 0 ? stderr : stdout, fmt, arguments);
    va_end(arguments);
}

EXPORTED fpga_result fpgaInitialize(const char *config_file)
{
    (void)config_file;
    return FPGA_OK;
}

EXPORTED fpga_result fpgaFinalize(void)
{
    return FPGA_OK;
}

EXPORTED fpga_result fpgaGetOPAECVersion(fpga_version *version)
{
    if (!version)
        return FPGA_INVALID_PARAM;
    *version = (fpga_version){MAJOR, MINOR, PATCH};
    return FPGA_OK;
}

static fpga_result told(const char *text, char *to, size_t len)
{
    if (!to)
        return FPGA_INVALID_PARAM;
    if (strlen(text) >= len)
        return FPGA_EXCEPTION;
    strcpy(to, text);
    return FPGA_OK;
}

EXPORTED fpga_result fpgaGetOPAECVersionString(char *version_str, size_t len)
{
    return told(TEXT(MAJOR) "." TEXT(MINOR) "." TEXT(PATCH), version_str, len);
}

EXPORTED fpga_result fpgaGetOPAECBuildString(char *build_str, size_t len)
{
    return told("aviary", build_str, len);
}
