/* A program that tells what it can do, a line at a time, and goes on when it is told to: with an accelerator and a buffer, or why not. */
#include "../../../fpga/opae/tests/common.h"

#include <string.h>

static void tell(const char *what, fpga_result result)
{
    printf("%s: %s\n", what, fpgaErrStr(result));
    fflush(stdout);
}

int main(void)
{
    fpga_guid guid = NLB;
    fpga_properties filter;
    fpga_token token = NULL;
    fpga_handle handle;
    volatile uint64_t *memory = NULL;
    uint64_t id, word;
    uint32_t matches = 0;
    fpga_result result;

    OK(fpgaGetProperties(NULL, &filter));
    OK(fpgaPropertiesSetGUID(filter, guid));
    result = fpgaEnumerate(&filter, 1, &token, 1, &matches);
    tell("enumerate", result == FPGA_OK && !matches ? FPGA_NOT_FOUND : result);
    if (!token)
        return 0;
    result = fpgaOpen(token, &handle, 0);
    tell("open", result);
    if (result != FPGA_OK)
        return 0;
    result = fpgaPrepareBuffer(handle, 2 << 20, (void **)&memory, &id, 0);
    tell("buffer", result);
    while (getchar() != EOF) {
        /* Memory stays, whatever has become of the API server. */
        if (memory)
            memory[0]++;
        tell("read", fpgaReadMMIO64(handle, 0, SCRATCH, &word));
    }
    tell("close", fpgaClose(handle));
    return 0;
}
