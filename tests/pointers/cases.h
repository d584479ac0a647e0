/* Shared by the table of an API's functions (`aviary spec pointers`), the test that walks it (cases.c) and the API's own
 * part (apis/NAME/tests/pointers.h). */
#ifndef POINTERS_CASES_H
#define POINTERS_CASES_H
#include <stdint.h>

#define POINTERS_PARAMETERS 24

enum pointers_kind {
    POINTERS_INTEGER,
    POINTERS_FLOAT,
    POINTERS_POINTER,
    POINTERS_CALLBACK,
    POINTERS_STRUCT,
    POINTERS_STRUCT_WITH_POINTERS,
};

struct pointers_parameter {
    enum pointers_kind kind;
    /* Of one value. */
    unsigned int bytes;
    /* As the header writes it, without `const`. */
    const char *type;
};

/* Integers and pointers are words; a struct by value lies in memory. */
union pointers_value {
    uint64_t word;
    double number;
    void *memory;
};

struct pointers_function {
    const char *name;
    void (*call)(void *function, const union pointers_value *values);
    unsigned int count;
    struct pointers_parameter parameters[POINTERS_PARAMETERS];
};

/* The table ends with an entry without a name. */
extern const struct pointers_function pointers_functions[];
extern const char *const pointers_library;

/* A good value for parameters of that type. */
void known(const char *type, uint64_t value);
/* Integers of that type are addresses, too. */
void addresses(const char *type);

#endif
