/* Macros that the names of includes are made of (include_names.c). */
#ifndef OPENCL_INCLUDE_NAMES_H
#define OPENCL_INCLUDE_NAMES_H

#include <limits.h>
#include <stddef.h>

/* Definitions of one program, of its options and of all its texts, whatever conditions they stand under. */
struct opencl_macros;

/* Those of `-D` in the options; NULL: no memory. */
struct opencl_macros *opencl_new_macros(const char *options);
void opencl_free_macros(struct opencl_macros *macros);
/* Notes each `#define` of the text. True if one is new. */
int opencl_note_macros(struct opencl_macros *macros, const char *text, size_t size);
/* The name that an `#include` with these words, which are not in quotes, means under the definition number `variant` of their first
 * word. 1: `name` has it; 0: they make no name; -1: there are fewer definitions. */
int opencl_include_name(const struct opencl_macros *macros, unsigned int variant, const char *words, size_t length,
                        char name[PATH_MAX]);

#endif
