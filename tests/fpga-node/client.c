/* A client of a card that does what it is told, a line at a time:
 *
 *   memory N   asks for N bytes and keeps them; free gives the last ones back
 *   walk       starts a list walk that never ends; sum walks a list of one node and prints its sum
 *   cycles     device cycles of its jobs so far
 *   ports      the number of ports that it may use
 *
 * Each line is answered with one. It connects to an LL, or to the accelerator whose GUID is its argument. */
#include <aviary-fpga.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LL "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002"
#define HEAD 0x40
#define SUM 0x80
#define MOST 64

static aviary_fpga *card;

static int tell(int error)
{
    printf("%s\n", error ? aviary_fpga_explain(error) : "ok");
    fflush(stdout);
    return error;
}

static int walk(uint64_t *node, uint64_t next)
{
    int error = aviary_fpga_reset(card);

    node[0] = next;
    node[1] = 41;
    if (!error)
        error = aviary_fpga_write(card, HEAD, (uintptr_t)node);
    return error ? error : aviary_fpga_start(card);
}

int main(int argc, char **argv)
{
    void *held[MOST];
    int count = 0, error;
    unsigned ports;
    uint64_t *node, sum;
    char line[128];

    if (tell(aviary_fpga_connect(argc > 1 ? argv[1] : LL, &card)))
        return 1;
    node = NULL;
    while (fgets(line, sizeof line, stdin)) {
        struct aviary_fpga_status status;
        if (strncmp(line, "memory ", 7) == 0 && count < MOST) {
            held[count] = aviary_fpga_malloc(card, strtoull(line + 7, NULL, 0));
            tell(held[count] ? 0 : errno);
            count += held[count] != NULL;
        } else if (strcmp(line, "free\n") == 0 && count > 0) {
            aviary_fpga_free(card, held[--count]);
            tell(0);
        } else if (strcmp(line, "walk\n") == 0 || strcmp(line, "sum\n") == 0) {
            if (!node)
                node = aviary_fpga_malloc(card, 128);
            if (!node) {
                tell(errno);
            } else if (line[0] == 'w') {
                tell(walk(node, (uintptr_t)node));
            } else if ((error = walk(node, 0)) || (error = aviary_fpga_wait(card, -1))
                       || (error = aviary_fpga_read(card, SUM, &sum))) {
                tell(error);
            } else {
                printf("%llu\n", (unsigned long long)sum);
                fflush(stdout);
            }
        } else if (strcmp(line, "cycles\n") == 0 && (error = aviary_fpga_status(card, &status)) == 0) {
            printf("%llu\n", (unsigned long long)status.cycles);
            fflush(stdout);
        } else if (strcmp(line, "ports\n") == 0) {
            error = aviary_fpga_list(NULL, 0, &ports);
            printf("%s %u\n", aviary_fpga_explain(error), ports);
            fflush(stdout);
        } else {
            tell(EINVAL);
        }
    }
    return 0;
}
