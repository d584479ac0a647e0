/* Types and functions that the files of libaviary-fpga share. */
#ifndef AVIARY_FPGA_INTERNAL_H
#define AVIARY_FPGA_INTERNAL_H
#include "aviary-fpga.h"

#include <pthread.h>
#include <sys/types.h>

#define EXPORTED __attribute__((visibility("default")))
#define HUGE_PAGE ((size_t)2 << 20)

/* Kinds of requests, and the version; crates/fpga/src/link/message.rs. */
enum { VERSION = 5 };
enum kind { HELLO = 1, READ, WRITE, BASE, STATE, MAP, UNMAP, RESET, WAIT, INFO, INTERRUPT, PORT, MEMORY, FORGET, FAULT };

struct request {
    uint32_t kind, small;
    uint64_t words[7];
};

struct reply {
    uint32_t errno_value, unused;
    uint64_t words[7];
};

_Static_assert(sizeof(struct request) == 64 && sizeof(struct reply) == 64, "messages have 64 bytes");

/* A file that the card knows. */
struct memory {
    uint64_t id;
    dev_t device;
    ino_t inode;
    /* Bytes from the beginning of the file that the card has mapped, and if it may write there. */
    uint64_t length;
    int writable;
    /* Blocks in it. */
    unsigned uses;
    struct memory *next;
};

/* Memory that is mapped for the accelerator, in the order of its IO addresses. */
struct block {
    /* Its place in the region, and its bytes. */
    char *place;
    size_t length;
    /* The program's address: `place`, unless the memory was there before; NULL: a file of others. */
    char *address;
    enum {
        /* Memory of the library in the region: pages of its file. */
        OWN,
        /* Memory of the program whose pages are those of the library's file now: it gets pages of its own again. */
        BORROWED,
        /* A file of others, of which this process may have nothing mapped. */
        FOREIGN
    } kind;
    /* The file in which it is, if it is on a link. */
    struct memory *memory;
    struct block *next;
};

/* A PCI function of a virtual machine. */
struct fpga_function;

/* Values that are no descriptor. */
enum { UNTOLD = -1, UNASKED = -2 };

struct aviary_fpga {
    /* One request at a time, and the blocks. */
    pthread_mutex_t lock;
    /* The card: a socket, or a function; -1 and NULL where it is the other. */
    int socket;
    struct fpga_function *function;
    /* The descriptor that is readable after a job has ended: UNASKED: it was not needed yet. UNTOLD: there is none. */
    int end;
    /* The region: reserved from `reserved` on, used from `region` on, which is aligned to 2 MB. */
    char *reserved, *region;
    size_t reserved_bytes, region_bytes;
    struct block *blocks;
    /* The library's own file: memory that the card maps as well, at its place in the region. -1: there is none yet. */
    int file;
    uint64_t file_bytes;
    struct memory *memories;
    uint64_t next_memory;
};

/* Connects to the card. The socket, or a negative error. */
int fpga_connect(void);
/* Ends a connection and waits until the card has noticed, a second at most: until then it counts as a session of the tenant. */
void fpga_end_connection(int socket);
/* The two halves of a GUID, the first one higher. False: the text is none. */
int fpga_parse_guid(const char *text, uint64_t words[2]);
/* Sends a request, with `descriptor` unless that is -1, and takes its reply; `came` gets the reply's descriptor or -1, unless it
 * is NULL. One request at a time. */
int fpga_exchange(int socket, struct request request, int descriptor, struct reply *reply, int *came);
/* The same without a descriptor in the reply, which may be NULL. Call with the lock. */
int fpga_ask(aviary_fpga *card, struct request request, int descriptor, struct reply *reply);
/* The same under the lock. */
int fpga_ask_locked(aviary_fpga *card, struct request request, struct reply *reply);
/* Gives the addresses of the region that no block of the program has back. */
void fpga_return_gaps(aviary_fpga *card);
/* Forgets the blocks and memories of a card that is left. */
void fpga_drop_blocks(aviary_fpga *card);
/* With the lock: a file of which the card knows at least `length` bytes, with one use more. A negative error. */
int fpga_use_memory(aviary_fpga *card, int file, uint64_t length, int writable, struct memory **memory);
/* With the lock: one use less. The last one makes the card forget the file. */
void fpga_release_memory(aviary_fpga *card, struct memory *memory);

/* True: cards of this process are PCI functions of the virtual machine that it is in. */
int fpga_uses_functions(void);
/* Opens the function with an accelerator of this type; the reply is that of HELLO. A negative error. */
int fpga_function_open(const uint64_t guid[2], struct fpga_function **function, struct reply *reply);
/* Ends the job, and everything that is mapped. */
void fpga_function_close(struct fpga_function *function);
/* As aviary_fpga_list. */
int fpga_function_list(struct aviary_fpga_port *ports, unsigned room, unsigned *count);
/* Does what a card does with a request. */
int fpga_function_ask(struct fpga_function *function, const struct request *request, struct reply *reply);
/* The accelerator's registers. */
volatile void *fpga_function_page(struct fpga_function *function);
/* The phase alone, which is one read. */
int fpga_function_phase(struct fpga_function *function, uint64_t *phase);
/* As aviary_fpga_event. */
int fpga_function_event(struct fpga_function *function, unsigned vector, int *descriptor);
/* Pins memory of this process and has the accelerator see it. -ENOMEM: the card refused it. -ENOLCK: too much is pinned. */
int fpga_function_map(struct fpga_function *function, const void *memory, uint64_t io_address, size_t bytes, int writable);
/* -E2BIG: it is done, and has taken more, since the rest of a large page had no room in the card's page table. */
int fpga_function_unmap(struct fpga_function *function, uint64_t io_address, size_t bytes);

#endif
