/* A program of a virtual machine with an accelerator, and of the host to compare with:
 *   copy BYTES     copies with NLB, and tells what differs and how many device cycles the job took
 *   pages BYTES    maps so much memory of the program that has no large pages, unmaps the middle half of it, and copies the rest
 *   wait           a job that reads for ever; ends when the card or the device does
 *   bother TIMES   such a job, with so many reads of a register for each page of 4 KB that is mapped and unmapped at the same time,
 *                  of which there are a tenth; then it waits
 *   late FILE      copies once, and again when the file is there, whatever the card does when it is told so
 *   walk               as wait, with LL and a list without an end
 *   stray TIMES        as bother, with LL
 *   as USER PROGRAM    runs another program as this user id
 * A third word is the user id under which it does so. */
#define _GNU_SOURCE
#include <aviary-fpga.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NLB "d8424dc4-a4a3-c413-f89e-433683f9040b"
#define LL "6c6c0001-4a5e-4f0a-9d1b-2f4f0c110002"
#define LINE 64
/* A register of LL. */
#define HEAD 0x40
/* Registers of NLB and bits of CTL and CFG. */
enum { DSM_BASE = 0x110, SRC_ADDR = 0x120, DST_ADDR = 0x128, NUM_LINES = 0x130, CTL = 0x138, CFG = 0x140 };
enum { OUT_OF_RESET = 1, START = 2, CONTINUOUS = 2 };

/* Or an LL. */
static aviary_fpga *nlb;

static void must(int error, const char *what)
{
    if (error) {
        printf("%s: %d: %s\n", what, error, aviary_fpga_explain(error));
        exit(1);
    }
}

static void *mapped(size_t bytes)
{
    void *memory = NULL;

    must(aviary_fpga_map(nlb, &memory, bytes, 0, NULL), "map");
    return memory;
}

static void start(const void *source, const void *target, size_t bytes, uint64_t config)
{
    static volatile char *dsm;

    if (!dsm)
        dsm = mapped(4096);
    must(aviary_fpga_write(nlb, CTL, 0), "reset");
    must(aviary_fpga_write(nlb, CTL, OUT_OF_RESET), "begin");
    must(aviary_fpga_write(nlb, DSM_BASE, (uintptr_t)dsm), "DSM_BASE");
    must(aviary_fpga_write(nlb, SRC_ADDR, (uintptr_t)source / LINE), "SRC_ADDR");
    must(aviary_fpga_write(nlb, DST_ADDR, (uintptr_t)target / LINE), "DST_ADDR");
    must(aviary_fpga_write(nlb, NUM_LINES, bytes / LINE), "NUM_LINES");
    must(aviary_fpga_write(nlb, CFG, config), "CFG");
    must(aviary_fpga_write(nlb, CTL, OUT_OF_RESET | START), "start");
}

static size_t copy(const unsigned char *source, unsigned char *target, size_t bytes)
{
    size_t wrong = 0;

    start(source, target, bytes, 0);
    must(aviary_fpga_wait(nlb, -1), "wait");
    for (size_t i = 0; i < bytes; i++)
        wrong += target[i] != source[i];
    return wrong;
}

static void fill(unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)(i * 7 + (i >> 12));
}

static void copy_once(size_t bytes)
{
    unsigned char *source = mapped(bytes), *target = mapped(bytes);
    struct aviary_fpga_status status;
    size_t wrong;

    fill(source, bytes);
    wrong = copy(source, target, bytes);
    must(aviary_fpga_status(nlb, &status), "status");
    printf("%zu bytes copied, %zu wrong, %llu cycles\n", bytes, wrong, (unsigned long long)status.cycles);
}

/* The second job is told to the card when the file is there, and maps nothing. */
static void copy_again(const char *file)
{
    enum { BYTES = 1 << 16 };
    unsigned char *source = mapped(BYTES), *target = mapped(BYTES);

    fill(source, BYTES);
    printf("%zu wrong in the first job\n", copy(source, target, BYTES));
    while (access(file, F_OK) != 0)
        usleep(1000);
    memset(target, 0, BYTES);
    start(source, target, BYTES, 0);
    printf("the job is told\n");
    must(aviary_fpga_wait(nlb, -1), "wait");
    printf("%s in the second job\n", memcmp(target, source, BYTES) == 0 ? "nothing wrong" : "wrong bytes");
}

/* Maps memory in pieces of a quarter; the accelerator copies the first one into the last one. */
static void small_pages(size_t bytes)
{
    size_t part = bytes / 4, wrong;
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t at[4];

    if (memory == MAP_FAILED)
        must(-ENOMEM, "mmap");
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    fill(memory, part);
    for (int i = 0; i < 4; i++) {
        void *place = memory + i * part;
        must(aviary_fpga_map(nlb, &place, part, AVIARY_FPGA_EXISTING, &at[i]), "map");
    }
    for (int i = 1; i < 3; i++)
        must(aviary_fpga_unmap(nlb, memory + i * part), "unmap");
    start((void *)(uintptr_t)at[0], (void *)(uintptr_t)at[3], part, 0);
    must(aviary_fpga_wait(nlb, -1), "wait");
    wrong = memcmp(memory, memory + 3 * part, part) != 0;
    printf("%zu bytes in small pages, %zu wrong\n", bytes, wrong);
}

/* Registers are read, and memory is mapped and unmapped while the job runs. */
static void bother(uint32_t plain, size_t times)
{
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t value;

    if (page == MAP_FAILED)
        must(-ENOMEM, "mmap");
    for (size_t i = 0; i < times; i++) {
        must(aviary_fpga_read(nlb, plain, &value), "read");
        if (i % 10)
            continue;
        must(aviary_fpga_map(nlb, (void **)&page, 4096, AVIARY_FPGA_EXISTING, NULL), "map");
        must(aviary_fpga_unmap(nlb, page), "unmap");
    }
    printf("bothered\n");
}

/* A job that does not end. */
static void endless(const char *guid)
{
    uint64_t *memory;

    must(aviary_fpga_connect(guid, &nlb), "connect");
    memory = mapped(1 << 20);
    if (strcmp(guid, LL) == 0) {
        memory[0] = (uintptr_t)memory;
        must(aviary_fpga_write(nlb, HEAD, (uintptr_t)memory), "HEAD");
        must(aviary_fpga_start(nlb), "start");
    } else {
        start(memory, memory, 1 << 20, CONTINUOUS);
    }
    /* The interrupt is set up now, too. */
    if (aviary_fpga_wait(nlb, 100) == -ETIMEDOUT)
        printf("the job runs\n");
}

static int is_one_of(const char *word, const char *one, const char *other)
{
    return word && (strcmp(word, one) == 0 || (other && strcmp(word, other) == 0));
}

int main(int count, char **words)
{
    size_t bytes = count > 2 ? strtoul(words[2], NULL, 0) : 1 << 20;

    setlinebuf(stdout);
    if (count > 3 && strcmp(words[1], "as") == 0) {
        if (setuid((uid_t)atoi(words[2])) == 0)
            execv(words[3], words + 3);
        must(-errno, "as");
    }
    if (count > 3 && setuid((uid_t)atoi(words[3])) != 0)
        must(-errno, "setuid");
    if (is_one_of(words[1], "walk", "stray")) {
        endless(LL);
        if (strcmp(words[1], "stray") == 0)
            bother(HEAD, bytes);
        must(aviary_fpga_wait(nlb, -1), "wait");
        return 0;
    }
    if (is_one_of(words[1], "wait", "bother")) {
        endless(NLB);
        if (strcmp(words[1], "bother") == 0)
            bother(NUM_LINES, bytes);
        must(aviary_fpga_wait(nlb, -1), "wait");
        return 0;
    }
    must(aviary_fpga_connect(NLB, &nlb), "connect");
    if (is_one_of(words[1], "pages", NULL)) {
        small_pages(bytes);
    } else if (is_one_of(words[1], "late", NULL)) {
        copy_again(words[2]);
    } else {
        copy_once(bytes);
    }
    aviary_fpga_disconnect(nlb);
    return 0;
}
