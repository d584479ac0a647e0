/* Adds two vectors with the accelerator of this example, and checks the sums. */
#include <aviary-fpga.h>

#include <stdio.h>
#include <stdlib.h>

/* vadd/vadd.toml */
#define VADD "76616464-4a5e-4f0a-9d1b-2f4f0c110101"
#define SOURCE 0x40
#define TARGET 0x48
#define LINES 0x50
/* Numbers in a line. */
#define WIDTH 16

static void check(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "%s: %s\n", what, aviary_fpga_explain(error));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 0) : 1 << 14, wrong = 0;
    size_t lines = (count + WIDTH - 1) / WIDTH;
    struct aviary_fpga_status status;
    aviary_fpga *adder;
    unsigned *input, *sums;

    check(aviary_fpga_connect(VADD, &adder), "connect");
    /* Lines of the two vectors alternate. */
    input = aviary_fpga_malloc(adder, 2 * lines * WIDTH * sizeof *input);
    sums = aviary_fpga_malloc(adder, lines * WIDTH * sizeof *sums);
    if (!input || !sums) {
        perror("memory");
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        unsigned *pair = input + i / WIDTH * 2 * WIDTH + i % WIDTH;
        pair[0] = (unsigned)i * 2654435761u;
        pair[WIDTH] = (unsigned)i ^ 0x5bd1e995u;
    }
    check(aviary_fpga_write(adder, SOURCE, (uintptr_t)input), "SOURCE");
    check(aviary_fpga_write(adder, TARGET, (uintptr_t)sums), "TARGET");
    check(aviary_fpga_write(adder, LINES, 2 * lines), "LINES");
    check(aviary_fpga_start(adder), "start");
    check(aviary_fpga_wait(adder, -1), "wait");
    for (size_t i = 0; i < count; i++)
        wrong += sums[i] != (unsigned)i * 2654435761u + ((unsigned)i ^ 0x5bd1e995u);
    check(aviary_fpga_status(adder, &status), "status");
    printf("%zu sums, %zu wrong\n", count, wrong);
    fprintf(stderr, "%llu device cycles, %llu preemptions\n", (unsigned long long)status.cycles, (unsigned long long)status.preemptions);
    aviary_fpga_disconnect(adder);
    return wrong != 0;
}
