/* The runtime of guest libraries, as utility code may use it. */
#ifndef AVIARY_GUEST_H
#define AVIARY_GUEST_H

#include <aviary/common.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory that has the same address in the guest and in the API server, zero-initialised. NULL: it is exhausted. */
void *aviary_zerocopy_alloc(size_t size);
void aviary_zerocopy_free(void *pointer);
/* Both by the names that they have in expressions. */
#define zerocopy_alloc(size) aviary_zerocopy_alloc(size)
#define zerocopy_free(pointer) aviary_zerocopy_free(pointer)
/* Such memory with any content. */
void *aviary_zerocopy_alloc_uninitialized(size_t size);
/* The vendor's library uses the memory from now on, until the server's utility code returns it. */
void aviary_zerocopy_lend(void *pointer);

/* True if the server sees these bytes where the application has them (`aviary run --share-heap`, or a VM's pinned memory): moving
 * them in parts gains nothing then. */
int aviary_is_shared(const void *pointer, size_t size);

/* True if a value is a live handle. */
int aviary_is_handle(const void *handle);

/* False once the API server is gone. Calls that are answered without a message would not notice. */
int aviary_connected(void);

/* A number that grows with every call that the process has sent: with an asynchronous one when it begins, with any other one when it
 * ends. Two equal numbers: no call of any thread has come between. 0: there is no API server, or it is gone. */
uint64_t aviary_calls(void);

/* Where the vendor's library starts threads of its own: has the connection survive that the application closes all its descriptors,
 * as programs do that go on in the background. A thread of the guest library has them, too, from the first of these calls on. */
void aviary_keep_connection(void);

/* Before a call in which the vendor's library may print: has the text go where the application's descriptors 1 and 2 lead now, if
 * they were led elsewhere since the process attached. Two system calls where they were not. */
void aviary_follow_output(void);

/* For handles whose objects every process finds alike (platforms, devices): a child of fork calls the function when it has attached. It
 * asks its own API server what the parent had asked, and says which object has which value; `now` is what was answered, `before` the
 * parent's. Only boxed handles. False: one of them is no handle. */
void aviary_after_fork(void (*function)(void));
int aviary_same_handle(const void *now, const void *before);

#ifdef __cplusplus
}
#endif
#endif
