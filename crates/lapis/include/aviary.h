/* What utility code in a LAPIS specification may use.
 *
 * AVIARY_GUEST is defined while the guest library is compiled, AVIARY_SERVER for the server module.
 */
#ifndef AVIARY_H
#define AVIARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The metadata of a handle, zero-initialised at first use. Guest and server each keep their own. */
void *aviary_metadata(const void *handle);
#define metadata(T, h) ((T *)aviary_metadata((const void *)(h)))

/* Guest: memory that has the same address in the guest and in the API server. NULL when it is exhausted. */
void *aviary_zerocopy_alloc(size_t size);
void aviary_zerocopy_free(void *pointer);
#ifdef AVIARY_GUEST
/* By the names that they have in expressions. */
#define zerocopy_alloc(size) aviary_zerocopy_alloc(size)
#define zerocopy_free(pointer) aviary_zerocopy_free(pointer)
#endif
/* The same with any content. */
void *aviary_zerocopy_alloc_uninitialized(size_t size);
/* Guest: the vendor's library uses the memory from now on. Server: it no longer does; the guest frees it. */
void aviary_zerocopy_lend(void *pointer);
void aviary_zerocopy_return(void *pointer);
/* In `after_server`: what this call charges stays charged until the number is returned, not until the end of the
 * object that it creates. The number must be new in this process. May be returned on any thread. */
void aviary_charge_keep(uint64_t number);
void aviary_charge_return(uint64_t number);
int aviary_is_zerocopy(const void *pointer);
/* Server: whether an asynchronous call of the guest's thread that this one serves has failed and no answer said so yet.
 * Whatever lets a guest go on without an answer has to look first. */
int aviary_owes_error(void);
/* Server, in a `drain`: for how many nanoseconds it should wait before it answers that the device is not through yet. */
uint64_t aviary_patience(void);
/* Server, in a `drain`: which wait this is. What the device had when it was asked with this number first is waited for, and not what
 * it gets between two questions. */
uint64_t aviary_wait_number(void);
/* Server: whether a call of some thread is about to give the device work, or has just done so. */
int aviary_device_gets_work(uint64_t device);
/* Server: for how many nanoseconds a call that waits for a device should look by itself whether that is through before it sleeps over
 * it. 0 but for programs that have the device, call often and are to be kept awake for it (`awake` of a device). */
uint64_t aviary_watch_time(void);
/* Server, in a call: nanoseconds that a part of long work shall take, so that other sessions have their turn in time; 0: work goes whole.
 * The same in all calls of a session. */
uint64_t aviary_slice_time(void);
/* Server, in a call: whether the session takes turns on devices with others. */
int aviary_takes_turns(void);
/* Server, in a call: whether the node serves one program only (`aviary run`), and has that one's environment. */
int aviary_is_private_node(void);
/* Guest only: whether the server sees these bytes where the application has them (`aviary run --share-heap`, or a
 * VM's pinned memory), so that nothing is gained by moving them in parts. */
int aviary_is_shared(const void *pointer, size_t size);

#ifdef AVIARY_SERVER
/* How much of a continuous resource the tenant may have on the device of this name, all its programs together (NULL:
 * wherever), and how much of that is left; 0, and nothing is written, where no limit is set. The resource may be another
 * API's.
 * `address` can name a function that lowers what the vendor's library says of its memory to that. */
int aviary_allowance(const char *resource, const char *device, uint64_t *limit, uint64_t *left);
/* Whether the tenant may use the device of this name, as the names for `continuous_rc` and `occupies` say it; NULL: whether
 * it may use every device that there is. Work and memory on other devices are refused anyway: with this, programs can be
 * told of their tenant's devices only. */
int aviary_may_use(const char *device);
/* The name of a descriptor that is offered to the other API servers of the tenant. Who knows it can fetch it. */
typedef struct {
    uint64_t session;
    uint64_t secret[2];
} aviary_offer_name;
/* Offers a copy of the descriptor, with a number, until it is withdrawn or the process ends; 0 if that worked. */
int aviary_offer(int descriptor, uint64_t note, aviary_offer_name *name);
void aviary_withdraw(const aviary_offer_name *name);
/* A descriptor, which the caller closes, and the number that was offered with it; -1: there is no such offer. */
int aviary_fetch(const aviary_offer_name *name, uint64_t *note);
#endif

/* Server, in a thread that makes no calls: work of many parts is between two of them on this device (see `occupies`).
   Waits if the session's slice of the device is used up. */
void aviary_device_pause(uint64_t device);

/* Guest only: whether a value is a live handle. */
int aviary_is_handle(const void *handle);

/* Guest only: false once the API server is gone. Calls that are answered without a message would not notice. */
int aviary_connected(void);

/* Guest: the library's own stub of that name, also of a function that is not virtualized. Server: the vendor's function. NULL if there is none. */
void *aviary_function(const char *name);

#ifdef AVIARY_SERVER
/* Defined by the specification if it likes: loads (dlopen) what the vendor's library loads only at its first call, so
 * that API servers share it. Calls nothing of the vendor's and starts no thread: the process is copied afterwards. */
__attribute__((weak)) void aviary_preload(void);
#endif

/* One line for the log of this side. */
void aviary_log(const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 1, 2)))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
