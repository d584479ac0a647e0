/* A client of a card that does what it is told, a line at a time:
 *
 *   memory N   asks for N bytes and keeps them; free gives the last ones back
 *   walk       starts a list walk that never ends; sum walks a list of one node and prints its sum
 *   list N     starts the walk of a list of N nodes with the values 0 to N - 1; end waits for it, and prints the sum and the nodes
 *   cycles     device cycles of its jobs so far
 *   port       the number of the port that it has or waits for
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
#define VISITED 0x88
#define LINE_WORDS 8
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

/* Scattered, so that the walk goes back and forth. */
static int list(uint64_t count)
{
    static uint64_t *nodes;
    uint64_t step = 7919, i;
    int error;

    aviary_fpga_free(card, nodes);
    nodes = aviary_fpga_malloc(card, count * 64);
    if (!nodes)
        return errno;
    for (i = 0; i < count; i++) {
        uint64_t *node = nodes + i * step % count * LINE_WORDS;
        node[0] = i + 1 == count ? 0 : (uintptr_t)(nodes + (i + 1) * step % count * LINE_WORDS);
        node[1] = i;
    }
    error = aviary_fpga_write(card, HEAD, (uintptr_t)nodes);
    return error ? error : aviary_fpga_start(card);
}

int main(int argc, char **argv)
{
    void *held[MOST];
    int count = 0, error;
    unsigned ports;
    uint64_t *node, sum, visited;
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
        } else if (strncmp(line, "list ", 5) == 0) {
            tell(list(strtoull(line + 5, NULL, 0)));
        } else if (strcmp(line, "end\n") == 0) {
            if ((error = aviary_fpga_wait(card, -1)) || (error = aviary_fpga_read(card, SUM, &sum))
                || (error = aviary_fpga_read(card, VISITED, &visited))) {
                tell(error);
            } else {
                printf("%llu %llu\n", (unsigned long long)sum, (unsigned long long)visited);
                fflush(stdout);
            }
        } else if (strcmp(line, "port\n") == 0 && (error = aviary_fpga_status(card, &status)) == 0) {
            printf("%d\n", (int)status.port);
            fflush(stdout);
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
