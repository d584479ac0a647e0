/* NLB's registers, and results that must be as expected, for the programs of the tests. */
#ifndef AVIARY_OPAE_TESTS_COMMON_H
#define AVIARY_OPAE_TESTS_COMMON_H
#include <opae/fpga.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* d8424dc4-a4a3-c413-f89e-433683f9040b */
#define NLB {0xd8, 0x42, 0x4d, 0xc4, 0xa4, 0xa3, 0xc4, 0x13, 0xf8, 0x9e, 0x43, 0x36, 0x83, 0xf9, 0x04, 0x0b}
enum { CONTROL = 0x18, SCRATCH = 0x100, DSM_BASE = 0x110, SRC_ADDR = 0x120, DST_ADDR = 0x128, NUM_LINES = 0x130, CTL = 0x138, CFG = 0x140,
       STATUS1 = 0x168 };
#define LINE 64
/* The word of DSM_BASE's memory that says that the job has ended. */
#define DONE (0x40 / sizeof(uint64_t))

#define EXPECT(call, wanted) expect((call), (wanted), #call, __FILE__, __LINE__)
#define OK(call) EXPECT(call, FPGA_OK)
#define CHECK(truth) check((truth), #truth, __FILE__, __LINE__)

static inline void expect(fpga_result result, fpga_result wanted, const char *call, const char *file, int line)
{
    if (result != wanted) {
        fprintf(stderr, "%s:%d: %s: %s, expected %s\n", file, line, call, fpgaErrStr(result), fpgaErrStr(wanted));
        exit(1);
    }
}

static inline void check(int truth, const char *text, const char *file, int line)
{
    if (!truth) {
        fprintf(stderr, "%s:%d: not true: %s\n", file, line, text);
        exit(1);
    }
}

/* The first accelerator of this type. */
static inline fpga_token find(const fpga_guid guid)
{
    fpga_properties filter = NULL;
    fpga_token token = NULL;
    fpga_guid wanted;
    uint32_t matches = 0;

    for (int i = 0; i < 16; i++)
        wanted[i] = guid[i];
    OK(fpgaGetProperties(NULL, &filter));
    OK(fpgaPropertiesSetObjectType(filter, FPGA_ACCELERATOR));
    OK(fpgaPropertiesSetGUID(filter, wanted));
    OK(fpgaEnumerate(&filter, 1, &token, 1, &matches));
    OK(fpgaDestroyProperties(&filter));
    CHECK(matches >= 1);
    return token;
}

/* Starts a copy of `lines` lines with the addresses of buffers. */
static inline void start_copy(fpga_handle handle, uint64_t dsm, uint64_t from, uint64_t to, uint32_t lines)
{
    uint64_t address;

    OK(fpgaGetIOAddress(handle, dsm, &address));
    OK(fpgaWriteMMIO64(handle, 0, DSM_BASE, address));
    OK(fpgaWriteMMIO32(handle, 0, CTL, 0));
    OK(fpgaWriteMMIO32(handle, 0, CTL, 1));
    OK(fpgaGetIOAddress(handle, from, &address));
    OK(fpgaWriteMMIO64(handle, 0, SRC_ADDR, address / LINE));
    OK(fpgaGetIOAddress(handle, to, &address));
    OK(fpgaWriteMMIO64(handle, 0, DST_ADDR, address / LINE));
    OK(fpgaWriteMMIO32(handle, 0, NUM_LINES, lines));
    OK(fpgaWriteMMIO32(handle, 0, CFG, 0x42000));
    OK(fpgaWriteMMIO32(handle, 0, CTL, 3));
}

/* Polls the memory into which the accelerator writes its end; no call is made. */
static inline void wait_for(const volatile uint64_t *dsm)
{
    while (!(dsm[DONE] & 1))
        usleep(100);
}

#endif
