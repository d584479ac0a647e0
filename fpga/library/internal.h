/* Types and functions that the files of libaviary-fpga share. */
#ifndef AVIARY_FPGA_INTERNAL_H
#define AVIARY_FPGA_INTERNAL_H
#include "aviary-fpga.h"

#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))
#define HUGE_PAGE ((size_t)2 << 20)

/* Kinds of requests, and the version; crates/fpga/src/link/message.rs. */
enum { VERSION = 3 };
enum kind { HELLO = 1, READ, WRITE, BASE, STATE, MAP, UNMAP, RESET, WAIT, INFO, INTERRUPT, PORT };

struct request {
    uint32_t kind, small;
    uint64_t words[7];
};

struct reply {
    uint32_t errno_value, unused;
    uint64_t words[7];
};

_Static_assert(sizeof(struct request) == 64 && sizeof(struct reply) == 64, "messages have 64 bytes");

/* Memory that is mapped for the accelerator, in the order of its IO addresses. */
struct block {
    /* Its place in the region, and its bytes. */
    char *place;
    size_t length;
    /* The program's address: `place`, unless the memory was there before; NULL: a file of others. */
    char *address;
    enum {
        /* Memory of the library in the region. */
        OWN,
        /* Memory of the program that lies in a file of the library now: it gets pages of its own again. */
        BORROWED,
        /* A file of others, of which this process may have nothing mapped. */
        FOREIGN
    } kind;
    struct block *next;
};

struct aviary_fpga {
    /* One request at a time, and the blocks. */
    pthread_mutex_t lock;
    int socket;
    /* The region: reserved from `reserved` on, used from `region` on, which is aligned to 2 MB. */
    char *reserved, *region;
    size_t reserved_bytes, region_bytes;
    struct block *blocks;
};

/* Connects to the card. The socket, or a negative error. */
int fpga_connect(void);
/* The two halves of a GUID, the first one higher. False: the text is none. */
int fpga_parse_guid(const char *text, uint64_t words[2]);
/* Sends a request, with `descriptor` unless that is -1, and takes its reply; `came` gets the reply's descriptor or -1, unless it
 * is NULL. One request at a time. */
int fpga_exchange(int socket, struct request request, int descriptor, struct reply *reply, int *came);
/* The same without a descriptor in the reply, which may be NULL. Call with the lock. */
int fpga_ask(aviary_fpga *card, struct request request, int descriptor, struct reply *reply);
/* The same under the lock. */
int fpga_ask_locked(aviary_fpga *card, struct request request, struct reply *reply);
/* Forgets the blocks of a card that is left. */
void fpga_drop_blocks(aviary_fpga *card);

#endif
