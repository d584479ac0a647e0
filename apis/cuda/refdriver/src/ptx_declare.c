/* Declarations of PTX: variables of each space, parameters and registers. */
#include <stdio.h>

#include "ptx_parser.h"

bool ptx_add_variable(struct ptx_parser *parser, const char *name, size_t length, uint64_t address)
{
    struct variable *variable = APPEND(parser->variables, parser->variable_count);

    if (!variable)
        return ptx_fail(parser, "out of memory", "");
    *variable = (struct variable){strndup(name, length), address, parser->code != NULL};
    return true;
}

/* No variable is larger; sums of sizes must not wrap. */
#define LARGEST ((size_t)1 << 40)

bool ptx_parse_declaration(struct ptx_parser *parser, const char *text, struct declaration *declaration)
{
    *declaration = (struct declaration){.alignment = 1};
    for (text = skip(text); *text == '.'; text = skip(text)) {
        size_t length = word(text);
        char name[32];

        snprintf(name, sizeof(name), "%.*s", (int)length - 1, text + 1);
        text = skip(text + length);
        if (strcmp(name, "align") == 0)
            declaration->alignment = strtoul(text, (char **)&text, 10);
        else if (strcmp(name, "attribute") == 0) {
            size_t end = strcspn(text, ")");

            declaration->managed = strncmp(text, "(.managed", 9) == 0;
            text += end + (text[end] == ')');
        } else if (strcmp(name, "shared") == 0)
            declaration->space = SPACE_SHARED;
        else if (strcmp(name, "local") == 0)
            declaration->space = SPACE_LOCAL;
        else if (strcmp(name, "global") == 0 || strcmp(name, "const") == 0)
            declaration->space = SPACE_GLOBAL;
        else if (strcmp(name, "param") == 0)
            declaration->space = SPACE_PARAM;
        else if (strcmp(name, "reg") == 0)
            declaration->is_register = true;
        else if (strcmp(name, "extern") == 0)
            declaration->external = true;
        else if (ptx_type_of(name) != PTX_NONE)
            declaration->type = ptx_type_of(name);
    }
    declaration->name = text;
    declaration->length = word(text);
    declaration->element = declaration->size = ptx_size(declaration->type);
    if (!declaration->length || !declaration->element || !declaration->alignment)
        return ptx_fail(parser, "wrong declaration:", text);
    if (declaration->alignment < declaration->element)
        declaration->alignment = declaration->element;
    text = skip(text + declaration->length);
    while (*text == '[') {
        if (__builtin_mul_overflow(declaration->size, strtoul(text + 1, (char **)&text, 10), &declaration->size) ||
            declaration->size > LARGEST || *text != ']')
            return ptx_fail(parser, "wrong declaration:", declaration->name);
        text = skip(text + 1);
    }
    declaration->values = *text == '=' ? text + 1 : NULL;
    return true;
}

size_t ptx_place(size_t *end, const struct declaration *declaration)
{
    size_t start = (*end + declaration->alignment - 1) / declaration->alignment * declaration->alignment;

    *end = start + declaration->size;
    return start;
}

static bool set_values(struct ptx_parser *parser, const struct declaration *declaration, char *bytes)
{
    const char *text = declaration->values;
    size_t offset = 0;

    for (text = text + strspn(text, " \t\r\n{"); *text && *text != '}'; text += strspn(text, " \t\r\n,{")) {
        uint64_t value;
        char *end;

        if (offset + declaration->element > declaration->size)
            return ptx_fail(parser, "too many values:", declaration->name);
        if (strncasecmp(text, "0f", 2) == 0 || strncasecmp(text, "0d", 2) == 0)
            value = strtoull(text + 2, &end, 16);
        else
            value = strtoull(text, &end, 0);
        if (end == text)
            return ptx_fail(parser, "wrong value:", text);
        memcpy(bytes + offset, &value, declaration->element);
        offset += declaration->element;
        text = end;
    }
    return true;
}

static bool add_global(struct ptx_parser *parser, const struct declaration *declaration)
{
    struct ptx_program *program = parser->program;
    struct ptx_global *global = APPEND(program->globals, program->global_count);
    char *bytes;

    if (!global)
        return ptx_fail(parser, "out of memory", "");
    *global = (struct ptx_global){strndup(declaration->name, declaration->length), 0, declaration->size, declaration->managed};
    bytes = parser->allocate(parser->environment, declaration->size ? declaration->size : 1, declaration->managed, &global->address);
    if (!bytes)
        return ptx_fail(parser, "out of memory for", declaration->name);
    if (declaration->values && !set_values(parser, declaration, bytes))
        return false;
    return ptx_add_variable(parser, declaration->name, declaration->length, global->address);
}

static bool add_registers(struct ptx_parser *parser, const struct declaration *declaration)
{
    const char *text = declaration->name;

    for (;;) {
        struct registers *registers = APPEND(parser->registers, parser->register_count);
        size_t length = word(text);

        if (!registers)
            return ptx_fail(parser, "out of memory", "");
        *registers = (struct registers){strndup(text, length), length, parser->code->register_count, 0};
        text = skip(text + length);
        if (*text == '<') {
            registers->count = (int)strtol(text + 1, (char **)&text, 10);
            text = skip(text + (*text == '>'));
            if (registers->count <= 0 || registers->count > 1 << 20)
                return ptx_fail(parser, "wrong number of registers:", declaration->name);
        }
        parser->code->register_count += registers->count ? registers->count : 1;
        if (*text != ',')
            return !*text || ptx_fail(parser, "wrong declaration:", text);
        text = skip(text + 1);
    }
}

/* Shared variables outside of functions are counted for every function: simple, and never too little. */
bool ptx_declare(struct ptx_parser *parser, const char *text, size_t *module_shared)
{
    struct declaration declaration;

    if (!ptx_parse_declaration(parser, text, &declaration))
        return false;
    if (declaration.is_register)
        return parser->code ? add_registers(parser, &declaration) : ptx_fail(parser, "register outside of a function:", text);
    if (declaration.space == SPACE_SHARED) {
        size_t *end = parser->code ? &parser->code->shared_bytes : module_shared;
        uint64_t address = declaration.external ? DYNAMIC_SHARED : ptx_place(end, &declaration);
        return ptx_add_variable(parser, declaration.name, declaration.length, address);
    }
    if (declaration.space == SPACE_LOCAL && parser->code)
        return ptx_add_variable(parser, declaration.name, declaration.length, ptx_place(&parser->code->local_bytes, &declaration));
    /* For a call. */
    if (declaration.space == SPACE_PARAM && parser->code)
        return ptx_add_variable(parser, declaration.name, declaration.length,
                                LOCAL_WINDOW + ptx_place(&parser->code->local_bytes, &declaration));
    if (declaration.space == SPACE_GLOBAL)
        return add_global(parser, &declaration);
    return ptx_fail(parser, "wrong declaration:", text);
}
