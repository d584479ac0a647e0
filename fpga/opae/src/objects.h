/* Objects of which programs have pointers, and functions that the files of libopae-c share. */
#ifndef AVIARY_OPAE_OBJECTS_H
#define AVIARY_OPAE_OBJECTS_H
#include <aviary-fpga.h>
#include <opae/fpga.h>
#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))
/* Interrupts that an accelerator has. */
#define VECTORS 4
/* Bytes of an accelerator's registers, the one MMIO space. */
#define PAGE_BYTES 0x1000

enum object_kind { TOKEN, PROPERTIES, HANDLE, EVENT };

/* The head of every object. A pointer of the program is looked up before it is followed, so that one to an object that is gone,
 * or of another kind, is an error. */
struct object {
    enum object_kind kind;
    /* The list of objects and each call that has the object. */
    unsigned uses;
    void (*destroy)(struct object *);
    struct object *next;
};

/* A new object of `bytes`, zeroed, which the program does not see yet; NULL: no memory. */
void *object_new(enum object_kind kind, size_t bytes, void (*destroy)(struct object *));
/* Makes an object known under its address. */
void object_show(void *object);
/* The object behind a program's pointer, held for this call; NULL: there is none of this kind. */
void *object_hold(const void *pointer, enum object_kind kind);
void object_release(void *object);
/* Ends the object behind a program's pointer, when the calls that have it are over. False: there is none of this kind. */
bool object_end(const void *pointer, enum object_kind kind);
/* Calls `look` with each object of a kind until it returns true; that is the answer, too. */
bool object_any(enum object_kind kind, bool (*look)(const struct object *, const void *context), const void *context);

/* A card or an accelerator. */
struct resource {
    fpga_objtype objtype;
    fpga_guid guid;
    /* Of an accelerator: its port. */
    uint64_t port;
    /* Of a card: its ports that the program may use. */
    uint32_t ports;
};

/* Names the resource on this machine. */
uint64_t resource_id(const struct resource *resource);
/* The card itself; `ports` may be NULL. An error of libaviary-fpga. */
int find_card(struct resource *card, struct aviary_fpga_port *ports, unsigned room);
/* A token that the program sees; NULL: no memory. */
fpga_token token_new(const struct resource *resource);

/* Fields of a properties object, a bit of `known` for each. */
enum property {
    PARENT, OBJTYPE, SEGMENT, BUS, DEVICE, FUNCTION, SOCKET_ID, DEVICE_ID, VENDOR_ID, SUBSYSTEM_VENDOR_ID, SUBSYSTEM_DEVICE_ID,
    NUM_SLOTS, BBS_ID, BBS_VERSION, GUID, NUM_MMIO, NUM_INTERRUPTS, STATE, OBJECT_ID, NUM_ERRORS, INTERFACE, HOSTNAME
};

struct properties {
    struct object object;
    pthread_mutex_t lock;
    uint32_t known;
    struct resource parent;
    fpga_objtype objtype;
    uint16_t segment, device_id, vendor_id, subsystem_vendor_id, subsystem_device_id;
    uint8_t bus, device, function, socket_id;
    uint32_t num_slots, num_mmio, num_interrupts, num_errors;
    uint64_t bbs_id, object_id;
    fpga_version bbs_version;
    fpga_guid guid;
    fpga_accelerator_state state;
    fpga_interface interface;
    char hostname[HOST_NAME_MAX + 1];
};

/* Sets what is known of a resource, and forgets the rest. */
void properties_of(struct properties *properties, const struct resource *resource);
/* A resource with `properties` is one that `filter` looks for. */
bool properties_match(const struct properties *filter, const struct properties *properties);

struct token {
    struct object object;
    struct resource resource;
};

/* Memory of a handle. */
struct buffer {
    uint64_t number, io_address;
    /* NULL: a file of others. */
    void *address;
    struct buffer *next;
};

struct handle {
    struct object object;
    struct resource resource;
    aviary_fpga *card;
    bool shared;
    /* Of what follows. */
    pthread_mutex_t lock;
    bool mapped;
    uint64_t next_number;
    struct buffer *buffers;
};

/* The result for an error of libaviary-fpga, which is told on standard error; 0 is FPGA_OK. */
fpga_result result_of(int error, const char *function);

#endif
