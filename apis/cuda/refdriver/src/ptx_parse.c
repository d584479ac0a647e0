/* The text of a PTX module: entry functions with their parameters, labels and instructions. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx_parser.h"

bool ptx_grow(void **array, size_t count, size_t size)
{
    void *grown;

    if (count & (count - 1))
        return true;
    grown = realloc(*array, (count ? 2 * count : 1) * size);
    if (!grown)
        return false;
    *array = grown;
    return true;
}

bool ptx_fail(struct ptx_parser *parser, const char *what, const char *where)
{
    if (!parser->message[0])
        snprintf(parser->message, sizeof(parser->message), "ptx: %s %.60s", what, where);
    return false;
}

static const struct {
    const char *name;
    enum ptx_type type;
    unsigned char size;
} types[] = {
    {"pred", PTX_PRED, 1}, {"b8", PTX_B8, 1},   {"b16", PTX_B16, 2}, {"b32", PTX_B32, 4}, {"b64", PTX_B64, 8},
    {"u8", PTX_U8, 1},     {"u16", PTX_U16, 2}, {"u32", PTX_U32, 4}, {"u64", PTX_U64, 8}, {"s8", PTX_S8, 1},
    {"s16", PTX_S16, 2},   {"s32", PTX_S32, 4}, {"s64", PTX_S64, 8}, {"f32", PTX_F32, 4}, {"f64", PTX_F64, 8},
};

enum ptx_type ptx_type_of(const char *name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    return PTX_NONE;
}

size_t ptx_size(enum ptx_type type)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].type == type)
            return types[i].size;
    return 0;
}

int ptx_register(const struct ptx_parser *parser, const char *name, size_t length)
{
    for (size_t i = 0; i < parser->register_count; i++) {
        const struct registers *known = &parser->registers[i];
        char *end;
        long number;

        if (length < known->length || strncmp(name, known->name, known->length) != 0)
            continue;
        if (!known->count && length == known->length)
            return known->first;
        if (!known->count || length == known->length || !isdigit((unsigned char)name[known->length]))
            continue;
        number = strtol(name + known->length, &end, 10);
        if (end == name + length && number < known->count)
            return known->first + (int)number;
    }
    return -1;
}

bool ptx_symbol(const struct ptx_parser *parser, const char *name, size_t length, uint64_t *address)
{
    for (size_t i = parser->variable_count; i-- > 0;) {
        const struct variable *known = &parser->variables[i];
        if (strlen(known->name) == length && strncmp(known->name, name, length) == 0) {
            *address = known->address;
            return true;
        }
    }
    return false;
}

int ptx_label(struct ptx_parser *parser, const char *name, size_t length)
{
    struct label *label;

    for (size_t i = 0; i < parser->label_count; i++)
        if (strlen(parser->labels[i].name) == length && strncmp(parser->labels[i].name, name, length) == 0)
            return (int)i;
    label = APPEND(parser->labels, parser->label_count);
    if (!label)
        return -1;
    *label = (struct label){strndup(name, length), -1};
    return (int)parser->label_count - 1;
}

/* --- functions --- */

static bool add_parameters(struct ptx_parser *parser, char *text)
{
    struct ptx_code *code = parser->code;
    char *part;

    while ((part = strsep(&text, ","))) {
        struct declaration declaration;
        struct ptx_parameter *parameter;
        size_t offset;

        if (!*skip(part))
            continue;
        if (!ptx_parse_declaration(parser, part, &declaration))
            return false;
        offset = ptx_place(&code->parameter_bytes, &declaration);
        parameter = APPEND(code->parameters, code->parameter_count);
        if (!parameter)
            return ptx_fail(parser, "out of memory", "");
        *parameter = (struct ptx_parameter){offset, declaration.size};
        if (!ptx_add_variable(parser, declaration.name, declaration.length, offset))
            return false;
    }
    return true;
}

static bool add_instruction(struct ptx_parser *parser, char *text)
{
    struct ptx_code *code = parser->code;
    size_t count = (size_t)code->instruction_count;
    struct ptx_instruction *instruction = APPEND(code->instructions, count);
    char copy[120];

    if (!instruction)
        return ptx_fail(parser, "out of memory", "");
    code->instruction_count = (int)count;
    snprintf(copy, sizeof(copy), "%s", text);
    if (!ptx_parse_instruction(parser, text, instruction))
        return false;
    if (instruction->opcode == OP_UNSUPPORTED && !code->unsupported)
        code->unsupported = strdup(copy);
    code->prints |= instruction->opcode == OP_CALL;
    return true;
}

/* A label, a declaration or an instruction. */
static bool parse_statement(struct ptx_parser *parser, char *text)
{
    text = (char *)skip(text);
    for (;;) {
        size_t length = word(text);
        char *colon = memchr(text, ':', length + 1);
        int label;

        /* `shared::cta` is no label. */
        if (!colon || colon[1] == ':' || text[0] == '@' || text[0] == '.')
            break;
        label = ptx_label(parser, text, (size_t)(colon - text));
        if (label < 0)
            return ptx_fail(parser, "out of memory", "");
        parser->labels[label].target = parser->code->instruction_count;
        text = (char *)skip(colon + 1);
    }
    if (!*text || (strncmp(text, ".loc", 4) == 0 && word(text) == 4) || strncmp(text, ".pragma", 7) == 0)
        return true;
    if (text[0] == '.')
        return ptx_declare(parser, text, NULL);
    return add_instruction(parser, text);
}

static bool resolve_labels(struct ptx_parser *parser)
{
    struct ptx_code *code = parser->code;

    for (int i = 0; i < code->instruction_count; i++) {
        int label = code->instructions[i].target;
        if (label < 0)
            continue;
        if (parser->labels[label].target < 0)
            return ptx_fail(parser, "unknown label:", parser->labels[label].name);
        code->instructions[i].target = parser->labels[label].target;
    }
    return true;
}

static void end_function(struct ptx_parser *parser)
{
    while (parser->register_count)
        free(parser->registers[--parser->register_count].name);
    while (parser->label_count)
        free(parser->labels[--parser->label_count].name);
    while (parser->variable_count && parser->variables[parser->variable_count - 1].local)
        free(parser->variables[--parser->variable_count].name);
    /* The arrays grow again from nothing. */
    free(parser->registers);
    free(parser->labels);
    parser->registers = NULL;
    parser->labels = NULL;
    parser->code = NULL;
}

/* The body up to its closing brace; the end of it, or NULL. Inner braces only limit names. */
static char *parse_body(struct ptx_parser *parser, char *text)
{
    int depth = 1;

    while (*text) {
        char *start = text = (char *)skip(text), *end, last;

        if (*text == '{' || *text == '}') {
            depth += *text == '{' ? 1 : -1;
            text++;
            if (depth == 0)
                return text;
            continue;
        }
        /* Braces of a vector are inside of a statement. */
        end = strpbrk(start, ";");
        if (!end)
            break;
        for (char *colon = strpbrk(start, ":{"); colon && colon < end && *colon == ':'; colon = strpbrk(colon + 1, ":{"))
            if (*skip(colon + 1) == '{') {
                end = colon + 1;
                break;
            }
        last = *end;
        *end = 0;
        if (!parse_statement(parser, start))
            return NULL;
        *end = last;
        text = end + (last == ';');
    }
    ptx_fail(parser, "the end of a function is missing", "");
    return NULL;
}

static char *skip_body(struct ptx_parser *parser, char *text)
{
    int depth = 0;

    for (; *text; text++) {
        depth += (*text == '{') - (*text == '}');
        if (depth == 0)
            return text + 1;
    }
    ptx_fail(parser, "the end of a function is missing", "");
    return NULL;
}

/* From behind `.entry` to the end of the function. */
static char *parse_entry(struct ptx_parser *parser, char *text, size_t module_shared)
{
    struct ptx_code **slot = APPEND(parser->program->codes, parser->program->code_count);
    struct ptx_code *code = calloc(1, sizeof(*code));
    char *parameters, *limit;

    if (!slot || !code) {
        ptx_fail(parser, "out of memory", "");
        free(code);
        return NULL;
    }
    *slot = parser->code = code;
    text = (char *)skip(text);
    code->name = strndup(text, word(text));
    code->shared_bytes = module_shared;
    code->maximum_threads = 1024;
    text = (char *)skip(text + word(text));
    if (*text == '(') {
        parameters = text + 1;
        text = strchr(text, ')');
        if (!text) {
            ptx_fail(parser, "the end of the parameters is missing:", code->name);
            return NULL;
        }
        *text++ = 0;
        if (!add_parameters(parser, parameters))
            return NULL;
    }
    parameters = text;
    text = strchr(text, '{');
    if (!text) {
        ptx_fail(parser, "the body is missing:", code->name);
        return NULL;
    }
    *text = 0;
    limit = strstr(parameters, ".maxntid");
    if (limit) {
        int product = 1;
        limit += strlen(".maxntid");
        do
            product *= (int)strtol(limit + (*limit == ','), &limit, 10);
        while (*(limit = (char *)skip(limit)) == ',');
        code->maximum_threads = product;
    }
    text = parse_body(parser, text + 1);
    if (!text || !resolve_labels(parser))
        return NULL;
    end_function(parser);
    return text;
}

static bool parse_module(struct ptx_parser *parser, char *text)
{
    size_t shared = 0;

    while (*(text = (char *)skip(text))) {
        size_t length = word(text);
        char *end;

        if (strncmp(text, ".version", length) == 0 || strncmp(text, ".target", length) == 0 ||
            strncmp(text, ".address_size", length) == 0 || strncmp(text, ".file", length) == 0) {
            text += strcspn(text, "\n");
            continue;
        }
        if (strncmp(text, ".section", length) == 0 || strncmp(text, ".func", length) == 0) {
            end = strpbrk(text, "{;");
            text = !end ? NULL : *end == ';' ? end + 1 : skip_body(parser, end);
        } else if (strncmp(text, ".entry", length) == 0) {
            text = parse_entry(parser, text + length, shared);
        } else if (strncmp(text, ".visible", length) == 0 || strncmp(text, ".weak", length) == 0 ||
                   (strncmp(text, ".extern", length) == 0 && strncmp(skip(text + length), ".func", 5) == 0)) {
            text += length;
        } else if (*text == '.') {
            end = strchr(text, ';');
            if (!end)
                return ptx_fail(parser, "the end of a declaration is missing:", text);
            *end = 0;
            if (!ptx_declare(parser, text, &shared))
                return false;
            text = end + 1;
        } else {
            return ptx_fail(parser, "a directive is expected, not", text);
        }
        if (!text)
            return ptx_fail(parser, "unexpected end", "");
    }
    return true;
}

static void blank_comments(char *text)
{
    while ((text = strchr(text, '/'))) {
        size_t length = text[1] == '/' ? strcspn(text, "\n") : 0;
        if (text[1] == '*') {
            char *end = strstr(text + 2, "*/");
            length = end ? (size_t)(end + 2 - text) : strlen(text);
        }
        memset(text, ' ', length);
        text += length ? length : 1;
    }
}

struct ptx_program *ptx_parse(const char *text, ptx_allocate allocate, void *environment, char message[200])
{
    struct ptx_parser parser = {.program = calloc(1, sizeof(struct ptx_program)), .allocate = allocate, .environment = environment};
    char *copy = strdup(text);
    bool good = parser.program && copy;

    if (good) {
        blank_comments(copy);
        good = parse_module(&parser, copy);
    }
    end_function(&parser);
    while (parser.variable_count)
        free(parser.variables[--parser.variable_count].name);
    free(parser.variables);
    free(copy);
    memcpy(message, parser.message, sizeof(parser.message));
    if (good)
        return parser.program;
    if (parser.program)
        ptx_free(parser.program);
    return NULL;
}

void ptx_free(struct ptx_program *program)
{
    for (size_t i = 0; i < program->code_count; i++) {
        struct ptx_code *code = program->codes[i];
        if (!code)
            continue;
        free(code->name);
        free(code->parameters);
        free(code->instructions);
        free(code->unsupported);
        free(code);
    }
    for (size_t i = 0; i < program->global_count; i++)
        free(program->globals[i].name);
    free(program->codes);
    free(program->globals);
    free(program);
}
