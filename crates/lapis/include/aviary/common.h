/* The part of the runtime that utility code of both sides may use. Include <aviary/guest.h> or <aviary/server.h>, which contain it;
 * a file of both sides includes <aviary.h>.
 *
 * AVIARY_GUEST is defined while a file is compiled for the guest library, AVIARY_SERVER while it is for the server module. */
#ifndef AVIARY_COMMON_H
#define AVIARY_COMMON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The metadata of a handle, zero-initialised at first use; NULL if there is no such handle, or if the structure of its type is another
 * one than T. Guest and server each keep their own. T is a structure that the specification names in `metadata` or
 * `declare_metadata`: aviary_metadata_kind comes with NAME_types.h. */
void *aviary_metadata(const void *handle, unsigned int kind);
#define metadata(T, h) ((T *)aviary_metadata((const void *)(h), aviary_metadata_kind(T)))

/* True if an address lies in memory that guest and API server share at the same address. */
int aviary_is_zerocopy(const void *pointer);

/* Guest: the library's own stub of that name, also of a function that is not virtualized. Server: the vendor's function.
 * NULL: there is none. */
void *aviary_function(const char *name);

/* One line for the log of this side; of a longer text the first 1023 bytes. */
void aviary_log(const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 1, 2)))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
