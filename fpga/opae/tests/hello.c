/* Copies 1 MiB with NLB in the flow of OPAE's first sample: enumerate, open, buffers, registers, completion polled in memory. */
#include "common.h"

#include <string.h>

#define BYTES (1 << 20)
#define ALLOCATED (2 << 20)

/* A simulator is waited for as long as it takes. */
static int is_simulated(void)
{
    fpga_properties properties = NULL;
    fpga_token card = NULL;
    uint32_t matches = 0;
    uint16_t device = 0;

    OK(fpgaGetProperties(NULL, &properties));
    OK(fpgaPropertiesSetObjectType(properties, FPGA_DEVICE));
    OK(fpgaEnumerate(&properties, 1, &card, 1, &matches));
    OK(fpgaDestroyProperties(&properties));
    CHECK(matches == 1);
    OK(fpgaGetProperties(card, &properties));
    OK(fpgaPropertiesGetDeviceID(properties, &device));
    OK(fpgaDestroyProperties(&properties));
    OK(fpgaDestroyToken(&card));
    return device == 0xa5e;
}

int main(void)
{
    const fpga_guid guid = NLB;
    fpga_properties properties = NULL;
    fpga_token token;
    fpga_handle handle;
    volatile uint64_t *dsm = NULL;
    unsigned char *input = NULL, *output = NULL;
    uint64_t dsm_id, input_id, output_id, pending = 1;
    uint8_t bus;
    int different = 0;

    CHECK(is_simulated());
    token = find(guid);
    OK(fpgaOpen(token, &handle, 0));
    OK(fpgaMapMMIO(handle, 0, NULL));
    OK(fpgaPrepareBuffer(handle, ALLOCATED, (void **)&dsm, &dsm_id, 0));
    OK(fpgaPrepareBuffer(handle, ALLOCATED, (void **)&input, &input_id, 0));
    OK(fpgaPrepareBuffer(handle, ALLOCATED, (void **)&output, &output_id, 0));
    CHECK((uintptr_t)dsm % 4096 == 0 && (uintptr_t)input % 4096 == 0 && (uintptr_t)output % 4096 == 0);
    OK(fpgaGetProperties(token, &properties));
    OK(fpgaPropertiesGetBus(properties, &bus));
    OK(fpgaDestroyProperties(&properties));
    printf("running on bus 0x%02x\n", bus);

    memset((void *)dsm, 0, ALLOCATED);
    memset(input, 0xaf, BYTES);
    memset(output, 0xbe, BYTES);
    for (uint32_t line = 0; line < BYTES / LINE; line++)
        ((uint32_t *)input)[16 * line + 15] = line + 1;
    OK(fpgaReset(handle));
    start_copy(handle, dsm_id, input_id, output_id, BYTES / LINE);
    wait_for(dsm);
    OK(fpgaWriteMMIO32(handle, 0, CTL, 7));
    while (pending)
        OK(fpgaReadMMIO64(handle, 0, STATUS1, &pending));
    for (int i = 0; i < BYTES; i++)
        different += input[i] != output[i];
    printf("%d bytes copied, %d differ\n", BYTES, different);

    OK(fpgaReleaseBuffer(handle, output_id));
    OK(fpgaReleaseBuffer(handle, input_id));
    OK(fpgaReleaseBuffer(handle, dsm_id));
    OK(fpgaUnmapMMIO(handle, 0));
    OK(fpgaClose(handle));
    OK(fpgaDestroyToken(&token));
    return different != 0;
}
