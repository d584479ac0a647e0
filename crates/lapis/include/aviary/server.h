/* The runtime of API servers, as utility code may use it. */
#ifndef AVIARY_SERVER_H
#define AVIARY_SERVER_H

#include <aviary/common.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The number that the guest has for an object, and the object that has a number. 0, NULL: there is none. An object keeps its number
 * where the session moves. */
uint64_t aviary_object_id(const void *object);
void *aviary_object(uint64_t id);

/* The vendor's library is done with zero-copy memory that the guest lent: the guest frees it. */
void aviary_zerocopy_return(void *pointer);

/* In `after_server`: the charges of this call end when the number is returned, not with the object that the call creates. While other
 * charges are kept under the number, those of this call end with it. May be returned on any thread. */
void aviary_charge_keep(uint64_t number);
void aviary_charge_return(uint64_t number);

/* True if an asynchronous call of the guest's thread that this one serves has failed and no answer said so yet: to be asked before a
 * guest is allowed to go on without an answer. */
int aviary_owes_error(void);

/* In a call, of a `written` output of so many bytes, if its application is on another machine and it is long: what to write of it before the
 * first `aviary_output_there`, and between two of them. 0: it is written as a whole. */
size_t aviary_output_part(const void *output, size_t bytes);
/* So many bytes of that are as the application is to have them. They leave at once, and the application may have them before the call is
 * over, whatever it answers; they are not written again. */
void aviary_output_there(const void *output, size_t bytes);

/* Waits until the posted callbacks that the vendor library has called have run in the guest, at most for that many nanoseconds: a
 * callback may itself wait for the call that asks. For calls that block natively, too, and return after the callbacks there. */
void aviary_settle_callbacks(uint64_t at_most_ns);

/* In a call: the function is called once when the guest has gone. A function of the specification that waits for something other than the
 * vendor's library returns then: its thread would keep the process. The first one that is named counts. */
void aviary_when_guest_is_gone(void (*end_waits)(void));

/* A question to a `drain` (see `occupies`): whether the device has done what this process had given it. */
struct aviary_drain {
    uint64_t device;
    /* The number of this wait. Work that the device had at the first question with this number is waited for; work that it gets
     * between two questions is not. */
    uint64_t wait;
    /* To wait at most before the answer "not drained yet". */
    uint64_t patience_ns;
};

/* In a call, before it answers which device it occupies: this device gives several processes parts of its time by itself, also in the
 * middle of long work, so the node admits other tenants beside the one that has it. Counts for devices that had no work yet. */
void aviary_device_preempts(uint64_t device);

/* True if a call of some thread is about to give the device work, or has just done so. */
int aviary_device_gets_work(uint64_t device);

/* ns for which a call that waits for a device should poll it before it sleeps. Above 0 only for programs that have the device, call
 * often and are to be kept awake for it (`awake` of a device). */
uint64_t aviary_watch_time(void);

/* In a call: ns that a part of long work shall take, so that other sessions have their turn in time; 0: work goes whole. Constant for a
 * session. */
uint64_t aviary_slice_time(void);
/* In a call: true if the node serves one program only (`aviary run`), and has that program's environment. */
int aviary_is_private_node(void);

/* In a thread that makes no calls: work of many parts is between two of them on this device (see `occupies`). Waits if the session's
 * slice of the device is used up. */
void aviary_device_pause(uint64_t device);

/* How much of a continuous resource the tenant may have on the device of this name, all its programs together (NULL: wherever), and
 * how much of that is left; 0, and nothing is written, where no limit is set. The resource may be another API's.
 * `address` can name a function that lowers the vendor library's answers about its memory to that. */
int aviary_allowance(const char *resource, const char *device, uint64_t *limit, uint64_t *left);

/* Memory of a device that the node shares out among sessions (`memory` of the device in node.toml), in bytes. */
struct aviary_shared_memory {
    /* What sessions share. */
    uint64_t memory;
    /* `device_memory` of the calling program, and of all programs of its tenant, wherever it is. */
    uint64_t programs;
    uint64_t tenants;
};
/* In a call: 1 if the node shares out the memory of the device of this name; 0, and nothing is written, if not. What the vendor's
 * library says to be free there is what others happen to have left: they leave for an allocation. */
int aviary_shared_memory(const char *device, struct aviary_shared_memory *shared);

/* Bytes of `device_memory` that each context on the device of this name is to be charged with: what the vendor's library takes of the
 * device for one. 0: contexts are charged with nothing there. */
uint64_t aviary_context_bytes(const char *device);

/* In a call that has been charged for `device_memory` on the device of this name, and for which the vendor's library has no memory: waits
 * until other sessions have left that have so many bytes there. 1: it is worth one more try; 0: nobody leaves. The caller holds no lock
 * that another call or an eviction needs. */
int aviary_make_room(const char *device, uint64_t bytes);
/* In `out` of `evictable`: so many bytes of the host's memory still have what left with the same object the last time, as `in` was given
 * it. 0: anything may be there. */
size_t aviary_keeps(const void *memory);
/* In `out`: so many of these bytes were not copied, as they are the same. For people. */
void aviary_unchanged(uint64_t bytes);
/* In `out`, of an object of a type with DEVICE, on any thread: so many of these bytes have left its device, up to now, and stay out until
 * `in`, whatever comes: others may have their place at once. What has not left when `out` answers stays, if there was any such call. */
void aviary_left(uint64_t bytes);
/* In `out`, of an object of a type with DEVICE, before its first `aviary_left`: so many of its bytes must leave at least; UINT64_MAX:
 * all. The rest may stay: `out` is called again, with the same memory, if more of it must leave, and `in` once for all that has. */
uint64_t aviary_must_leave(void);
/* In `in`, of an object of a type with DEVICE, on any thread: waits until so many of these bytes may be on its device, as others may
 * still be leaving. 0: they may not any more. Memory is made only after this. */
int aviary_may_return(uint64_t bytes);
/* In `out` and `in`: so much of the host's memory is kept for copies until the next time. It is charged with the session's, and
 * `give_back`, which is called while no call is under way, gives all of it back where there is no room for it. 0 and NULL: there
 * is none any more. */
void aviary_keeps_buffers(size_t bytes, void (*give_back)(void));

/* True if the tenant may use the device of this name, in the spelling of the names for `continuous_rc` and `occupies`; NULL: every
 * device that there is. Work and memory on other devices are refused anyway: this allows telling programs of their tenant's devices
 * only. */
int aviary_may_use(const char *device);

/* True if the tenant's `privileged` names this function: a specification asks that in a `require` of functions that change a device
 * for all its users. */
int aviary_privileged(const char *function);

/* Writes which of the tenant's programs hold how much of a continuous resource on the device of this name, at most `room` of them;
 * the number of all. `process` is the process id on the program's own machine. The resource may be another API's. */
struct aviary_process_use {
    uint64_t amount;
    uint32_t process;
};
unsigned int aviary_process_uses(const char *resource, const char *device, struct aviary_process_use *process_uses, unsigned int room);

/* The name of a descriptor that is offered to the other API servers of the tenant; knowing it is enough to fetch the descriptor. */
typedef struct {
    uint64_t session;
    uint64_t secret[2];
} aviary_offer_name;
/* Offers a copy of the descriptor, with a number, until it is withdrawn or the process ends; 0: done. */
int aviary_offer(int descriptor, uint64_t note, aviary_offer_name *name);
void aviary_withdraw(const aviary_offer_name *name);
/* A descriptor, which the caller closes, and the number that was offered with it; -1: there is no such offer. */
int aviary_fetch(const aviary_offer_name *name, uint64_t *note);

/* While a session's state is written (`session_state_cbs`, `obj_state_cbs`): hands a copy of the descriptor over to the process that
 * the session moves to. Its number, for the state; -1: the content must be copied, as the session is parked, or there are too many. */
int64_t aviary_hand_over(int descriptor);
/* While a state is read: the descriptor of that number, which the caller closes; -1: there is none. */
int aviary_handed(uint64_t number);
/* While a state is written: 1 if it needs the content of what is handed over, too. The session is to be parked; the process that takes
 * the descriptors makes it anew only to see if that works, and another one reads the content later, without descriptors. */
int aviary_must_copy(void);
/* While a state is written: memory for exactly so many bytes, which becomes a part of the state without passing through pieces. The
 * caller fills it, by as many threads as it likes, before it answers the piece that it was asked for. NULL: there is none, and the
 * content goes into pieces. Only a specification with `contents` gets any, and once. */
void *aviary_contents_to_write(uint64_t bytes);
/* While a state is read: that memory, until the piece is answered; NULL: the state has none of exactly so many bytes. */
const void *aviary_contents_to_read(uint64_t bytes);
/* A connection to the FPGA card of the node for the tenant of the call under way, which the caller closes; otherwise a negative errno. */
int aviary_card(void);
/* The file in which these bytes of zero-copy memory lie, for a vendor's library that maps them elsewhere, too: a descriptor, which the
 * caller closes, and the bytes' place in the file; -1: guest and server do not share them by a file. The file has all of the guest's
 * memory, and the guest changes its content at any time. */
int aviary_zerocopy_file(const void *pointer, size_t bytes, uint64_t *offset);

/* Defined by the specification if it likes: loads (dlopen) what the vendor's library loads only at its first call, so that API servers
 * share it. Calls nothing of the vendor's and starts no thread: the process is copied afterwards. */
__attribute__((weak)) void aviary_preload(void);
/* Defined by the specification if it likes: starts the vendor's library, by calls that leave nothing behind, in an API server to which a
 * session is about to move and which is its tenant's already. The session still runs elsewhere. */
__attribute__((weak)) void aviary_start(void);

/* A device for `aviary devices`. A text that is NULL or empty, and a 0, are unknown. */
struct aviary_device {
    const char *name; /* under which limits of devices name it */
    const char *uuid;
    const char *driver;    /* version */
    const char *library;   /* version */
    const char *pci;       /* DOMAIN:BUS:DEVICE.FUNCTION, hexadecimal */
    const char *unhealthy; /* why it cannot be used, or should not; NULL: nothing is known to be wrong */
    uint64_t memory;       /* bytes */
};
/* Defined by the specification if it likes: starts the vendor's library and calls `tell` for each device of the machine, whoever may
 * use it. It runs in a process that has no session and ends afterwards. A device with name NULL: none can be listed, and
 * `unhealthy` says why. */
__attribute__((weak)) void aviary_devices(void (*tell)(void *context, const struct aviary_device *device), void *context);

/* What a process has of a device's memory, as the vendor's library says. */
struct aviary_holder {
    const char *device; /* under which limits of devices name it */
    uint64_t process;   /* as the process that asks sees it; 0: none, the library tells of this device */
    uint64_t bytes;
};
/* Defined by the specification if it likes: starts the vendor's library and calls `tell` once with process 0 for each device of which
 * the library tells, and for each process with memory there. It runs in a process that has no session and ends afterwards. */
__attribute__((weak)) void aviary_holders(void (*tell)(void *context, const struct aviary_holder *holder), void *context);

/* Defined by the specification if it likes: measures what a context takes of each device, with what libraries load into one, and calls
 * `tell` with that as the bytes of process 0; not for a device where it cannot be measured. It runs in a process that has no session
 * and ends afterwards, before the node begins: contexts are charged with these bytes (aviary_context_bytes). */
__attribute__((weak)) void aviary_contexts(void (*tell)(void *context, const struct aviary_holder *holder), void *context);

#ifdef __cplusplus
}
#endif
#endif
