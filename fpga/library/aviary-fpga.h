/*
 * libaviary-fpga: an accelerator of a shared FPGA card, with memory that program and accelerator see at one address.
 *
 * A program connects by the accelerator's GUID, allocates memory in a region of 64 GB that is its own, writes the accelerator's
 * registers, starts it and waits. Pointers into the region go into registers and data as they are. docs/fpga.md has an example.
 *
 * The card is simulated; its environment variable AVIARY_FPGA=unix:PATH is set by `aviary run --fpga`.
 *
 * Functions return 0 or a negative error, which aviary_fpga_explain() explains. They may be called from several threads; one that
 * waits keeps none from the same accelerator.
 */
#ifndef AVIARY_FPGA_H
#define AVIARY_FPGA_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aviary_fpga aviary_fpga;

enum aviary_fpga_phase {
    AVIARY_FPGA_IDLE = 0,    /* no job */
    AVIARY_FPGA_QUEUED = 1,  /* the job waits for the port */
    AVIARY_FPGA_RUNNING = 2, /* the job has the port */
    AVIARY_FPGA_DONE = 3,
    AVIARY_FPGA_FAILED = 4   /* a request was refused or failed; until a reset */
};

/* The first fault of a job that has failed. */
enum aviary_fpga_fault {
    AVIARY_FPGA_NO_FAULT = 0,
    AVIARY_FPGA_NOT_MAPPED = 1,       /* no memory is mapped at the address */
    AVIARY_FPGA_READ_ONLY_MEMORY = 2, /* a write to memory that is mapped to be read only */
    AVIARY_FPGA_BELOW = 3,            /* the address is below the program's 64 GB */
    AVIARY_FPGA_ABOVE = 4,            /* above them */
    AVIARY_FPGA_SHAPE = 5,            /* no request of 1 to 4 lines that the monitor carries */
    AVIARY_FPGA_SILENT = 6,           /* the accelerator did not answer */
    AVIARY_FPGA_STUCK = 7,            /* it did not save its state in time for another's turn */
    AVIARY_FPGA_OWN_ERROR = 8         /* the accelerator's own error: no request was refused */
};

struct aviary_fpga_status {
    uint64_t phase;       /* enum aviary_fpga_phase */
    uint64_t port;        /* the card's port at which it is */
    uint64_t cycles;      /* device cycles in which its jobs ran */
    uint64_t preemptions; /* jobs that were interrupted for another's turn */
    uint64_t mapped;      /* bytes */
    uint64_t refused;     /* requests outside of the program's memory */
    uint64_t bad_accesses; /* of registers: wrong size or place */
    uint64_t fault;         /* enum aviary_fpga_fault; what follows is 0 where no request was refused */
    uint64_t fault_write;   /* 1: the request was a write */
    uint64_t fault_address; /* of its line of 64 bytes, as the accelerator gave it */
    uint64_t fault_cycle;   /* of the card's clock, when it was seen */
};

/* A port of the card that the program may use. */
struct aviary_fpga_port {
    uint64_t guid[2];      /* its accelerator's type, the higher half first */
    uint64_t port;         /* its number on the card */
    uint64_t accelerators; /* virtual accelerators there, of all programs */
};

/* For a process that may not connect by itself: from now on `connect` makes connections to the card, in place of AVIARY_FPGA. It
 * returns a socket or a negative error. */
void aviary_fpga_connect_by(int (*connect)(void));
/* Tells the ports, as many as there is room for, and how many there are. */
int aviary_fpga_list(struct aviary_fpga_port *ports, unsigned room, unsigned *count);
/* Connects to an accelerator of this type, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". */
int aviary_fpga_connect(const char *guid, aviary_fpga **accelerator);
/* Ends the job and gives back the memory, which must not be used any more. NULL is allowed. */
void aviary_fpga_disconnect(aviary_fpga *accelerator);
/* The same, but memory of aviary_fpga_malloc and aviary_fpga_map stays where it is, as memory of the program until that ends. */
void aviary_fpga_detach(aviary_fpga *accelerator);
/* Ends the job and forgets the registers. Memory stays. */
int aviary_fpga_reset(aviary_fpga *accelerator);

/* Registers of 64 bits; `offset` is a multiple of 8 in the page of 4 KB. */
int aviary_fpga_read(aviary_fpga *accelerator, uint32_t offset, uint64_t *value);
int aviary_fpga_write(aviary_fpga *accelerator, uint32_t offset, uint64_t value);
/* Halves of registers; `offset` is a multiple of 4. */
int aviary_fpga_read32(aviary_fpga *accelerator, uint32_t offset, uint32_t *value);
int aviary_fpga_write32(aviary_fpga *accelerator, uint32_t offset, uint32_t value);

/* The registers as memory, 4 KB of accesses of 32 and 64 bits, until the accelerator is left: in virtual machines. NULL: elsewhere,
 * where each access is a message. Where the accelerator has ended they read as all ones. */
volatile void *aviary_fpga_page(aviary_fpga *accelerator);

/* Memory that both see, zeroed, in whole pages of 2 MB. NULL: there is no more; errno says why. */
void *aviary_fpga_malloc(aviary_fpga *accelerator, size_t bytes);
/* Memory of aviary_fpga_malloc, or NULL. */
void aviary_fpga_free(aviary_fpga *accelerator, void *memory);

enum aviary_fpga_map_flags {
    AVIARY_FPGA_EXISTING = 1, /* memory that the program has */
    AVIARY_FPGA_READ_ONLY = 2 /* the accelerator may not write there */
};

/* Maps memory for the accelerator at an address of its own, `io_address`, which may be NULL. With AVIARY_FPGA_EXISTING `*memory`
 * is whole pages of the program's private memory, to which no thread may write during the call; its content stays. Otherwise
 * `*memory` gets new memory as of aviary_fpga_malloc, at its IO address. */
int aviary_fpga_map(aviary_fpga *accelerator, void **memory, size_t bytes, unsigned flags, uint64_t *io_address);
/* Maps whole pages of a file that others have mapped, from `offset` on: a memfd that is sealed against shrinking. */
int aviary_fpga_map_file(aviary_fpga *accelerator, int file, uint64_t offset, size_t bytes, unsigned flags, uint64_t *io_address);
/* Ends that. No request of the accelerator is under way there any more. */
int aviary_fpga_unmap_file(aviary_fpga *accelerator, uint64_t io_address);
/* Ends a mapping of aviary_fpga_map. Memory that the program had before stays, as private memory with its content. -E2BIG in a
 * virtual machine: it is done, and other memory in the same 2 MB was unmapped, too. */
int aviary_fpga_unmap(aviary_fpga *accelerator, void *memory);

/* Starts a job with the registers' values. */
int aviary_fpga_start(aviary_fpga *accelerator);
/* Waits until the job has ended, or so many milliseconds; below 0: without a limit. -ETIMEDOUT: it still runs; -EIO: it failed. */
int aviary_fpga_wait(aviary_fpga *accelerator, int timeout_ms);
/* A descriptor that can be polled and is readable after the accelerator raised this vector, 0 to 3: read 8 bytes, a count, as
 * from an eventfd. A job that ends raises vector 0. Close it when it is not needed; the vector's next one takes its place. */
int aviary_fpga_event(aviary_fpga *accelerator, unsigned vector, int *descriptor);
int aviary_fpga_status(aviary_fpga *accelerator, struct aviary_fpga_status *status);

/* What went wrong first in a job that has failed, in words. */
int aviary_fpga_explain_job(aviary_fpga *accelerator, char *text, size_t bytes);

/* An error of these functions in words, with what to do. */
const char *aviary_fpga_explain(int error);

#ifdef __cplusplus
}
#endif
#endif
