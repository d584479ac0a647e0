/* Inside of the parser of PTX: its state, and what its files share. */
#ifndef REFDRIVER_PTX_PARSER_H
#define REFDRIVER_PTX_PARSER_H

#include <stdlib.h>
#include <string.h>

#include "ptx.h"

/* `%r<10>` declares registers %r0 to %r9; a plain name one register. */
struct registers {
    char *name;
    size_t length;
    int first, count; /* count is 0 for a plain name */
};

struct label {
    char *name;
    int target;
};

struct variable {
    char *name;
    uint64_t address;
    bool local; /* of a function */
};

struct ptx_parser {
    struct ptx_program *program;
    struct ptx_code *code;
    struct registers *registers;
    size_t register_count;
    struct label *labels;
    size_t label_count;
    struct variable *variables;
    size_t variable_count;
    ptx_allocate allocate;
    void *environment;
    char message[200];
};

/* Room for one more element; parsing ends with an error where memory is out. */
#define APPEND(array, count) (ptx_grow((void **)&(array), (count), sizeof(*(array))) ? &(array)[(count)++] : NULL)
bool ptx_grow(void **array, size_t count, size_t size);

/* --- declarations: `.global .align 4 .u32 name[16] = {1, 2}` --- */

struct declaration {
    enum ptx_space space;
    size_t alignment, element, size;
    enum ptx_type type;
    const char *name;
    size_t length;
    const char *values;
    bool external, is_register, managed;
};

bool ptx_parse_declaration(struct ptx_parser *parser, const char *text, struct declaration *declaration);
/* Parses one and enters what it declares. Outside of functions, shared variables are counted in `module_shared`. */
bool ptx_declare(struct ptx_parser *parser, const char *text, size_t *module_shared);
bool ptx_add_variable(struct ptx_parser *parser, const char *name, size_t length, uint64_t address);
/* The next offset behind `end` for what is declared. */
size_t ptx_place(size_t *end, const struct declaration *declaration);

static inline const char *skip(const char *text) { return text + strspn(text, " \t\r\n"); }
static inline size_t word(const char *text) { return strcspn(text, " \t\r\n[]=,;()<{"); }

#endif
