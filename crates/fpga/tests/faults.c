/* Walks a list whose node is outside of the program's memory, three times, and tells what went wrong. */
#include <aviary-fpga.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002"
#define HEAD 0x40

static void check(int right, const char *text)
{
    if (!right) {
        fprintf(stderr, "wrong: %s\n", text);
        exit(1);
    }
}

int main(void)
{
    struct aviary_fpga_status status;
    aviary_fpga *walker;
    char text[200], expected[200];

    check(aviary_fpga_connect(LL, &walker) == 0, "connect");
    check(aviary_fpga_explain_job(walker, text, sizeof text) == 0 && !strcmp(text, "the job has not failed"), "no job");
    for (uint64_t round = 1; round <= 3; round++) {
        uint64_t *node = aviary_fpga_malloc(walker, 64);
        uint64_t outside = (uintptr_t)node - ((uint64_t)1 << 40);

        node[0] = outside;
        node[1] = round;
        check(aviary_fpga_write(walker, HEAD, (uintptr_t)node) == 0 && aviary_fpga_start(walker) == 0, "start");
        check(aviary_fpga_wait(walker, -1) == -EIO, "the job fails");
        check(aviary_fpga_status(walker, &status) == 0, "status");
        check(status.refused == round, "each refused request is counted when its job has ended");
        check(status.fault == AVIARY_FPGA_BELOW && !status.fault_write && status.fault_address == outside, "the fault is that read");
        snprintf(expected, sizeof expected, "a read of 0x%llx was refused at cycle %llu: the address is below the program's 64 GB",
                 (unsigned long long)outside, (unsigned long long)status.fault_cycle);
        check(aviary_fpga_explain_job(walker, text, sizeof text) == 0 && !strcmp(text, expected), text);
        check(aviary_fpga_reset(walker) == 0 && aviary_fpga_status(walker, &status) == 0 && status.fault == 0, "a reset ends it");
    }
    aviary_fpga_disconnect(walker);
    return 0;
}
