/* The names of the driver's errors, made from the header. */
#ifndef REFDRIVER_ERRORS_H
#define REFDRIVER_ERRORS_H

#include <stddef.h>

struct error_name {
    int value;
    const char *name;
};

/* Ends with a NULL name. */
extern const struct error_name error_names[];

#endif
