/* A program of a virtual machine that has its accelerator's registers as memory: what it writes is what OPAE's functions read. */
#include "../../fpga/opae/tests/common.h"

int main(void)
{
    const fpga_guid guid = NLB;
    fpga_handle handle;
    uint64_t *page = NULL, value = 0;

    OK(fpgaOpen(find(guid), &handle, 0));
    OK(fpgaMapMMIO(handle, 0, &page));
    CHECK(page != NULL);
    ((volatile uint64_t *)page)[SCRATCH / 8] = 0x1122334455667788;
    OK(fpgaReadMMIO64(handle, 0, SCRATCH, &value));
    CHECK(value == 0x1122334455667788);
    ((volatile uint32_t *)page)[SCRATCH / 4 + 1] = 0x99aabbcc;
    CHECK(((volatile uint64_t *)page)[SCRATCH / 8] == 0x99aabbcc55667788);
    OK(fpgaUnmapMMIO(handle, 0));
    OK(fpgaClose(handle));
    puts("registers are memory");
    return 0;
}
