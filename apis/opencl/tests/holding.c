/* Uses the device, says so, and stays: so that others can look at the process. */
#include "common.h"

int main(void) {
    struct device d = open_device(0);
    cl_program program = build(&d, "kernel void k(global int *p) { p[0] = 1; }", "");
    clReleaseProgram(program);
    printf("ready %d\n", getpid());
    fflush(stdout);
    pause();
    return 0;
}
