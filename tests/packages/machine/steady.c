/* A program under load: state that stays on the device is changed in every round and compared with the same done here, until
 * FILE is there and at least some rounds are done.
 *   steady SEED FILE */
#include "../../../apis/opencl/tests/common.h"

enum { WORDS = 4096, LEAST_ROUNDS = 50 };

static const char *const source = "kernel void advance(global uint *state, uint round) {\n"
                                  "  size_t i = get_global_id(0);\n"
                                  "  state[i] = state[i] * 1664525u + 1013904223u + round;\n"
                                  "}\n";

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    static cl_uint expected[WORDS], found[WORDS];
    for (cl_uint i = 0; i < WORDS; i++)
        expected[i] = (cl_uint)strtoul(argv[1], NULL, 10) * 7919 + i;
    struct device d = open_device(0);
    cl_kernel advance = kernel_of(build(&d, source, ""), "advance");
    cl_mem state = buffer_of(&d, CL_MEM_COPY_HOST_PTR, sizeof expected, expected);
    MUST(clSetKernelArg(advance, 0, sizeof state, &state));
    const size_t words = WORDS;
    cl_uint round = 0;
    while (round < LEAST_ROUNDS || access(argv[2], F_OK) != 0) {
        MUST(clSetKernelArg(advance, 1, sizeof round, &round));
        MUST(clEnqueueNDRangeKernel(d.queue, advance, 1, NULL, &words, NULL, 0, NULL, NULL));
        MUST(clEnqueueReadBuffer(d.queue, state, CL_TRUE, 0, sizeof found, found, 0, NULL, NULL));
        for (int i = 0; i < WORDS; i++)
            expected[i] = expected[i] * 1664525u + 1013904223u + round;
        if (memcmp(found, expected, sizeof found) != 0) {
            printf("round %u: wrong\n", round);
            return 1;
        }
        if (++round == 1) {
            puts("begun");
            fflush(stdout);
        }
        /* Twenty of them leave an emulated processor some time for others. */
        usleep(50000);
    }
    MUST(clReleaseMemObject(state));
    MUST(clReleaseKernel(advance));
    close_device(&d);
    puts("right");
    return 0;
}
