/* The names of includes that macros make, as in `#include STRING(FOLDER/file.h)` with `-D FOLDER=/some/where`: the part of a C
 * preprocessor that expands macros. Conditions are not evaluated: of several definitions of a macro each is tried for the first word,
 * and the last one counts within others. */
#include "include_names.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Bounds of one program's macros, of one's parameters, of an expansion's bytes, and of replacements in one expansion. */
enum { MOST_MACROS = 4096, MOST_PARAMETERS = 16, MOST_BYTES = 8192, MOST_REPLACEMENTS = 4096 };

struct macro {
    /* The name ends with a NUL, as do parameters and body; all of them lie in one block. */
    char *name, *body, *parameters[MOST_PARAMETERS];
    unsigned int parameter_count;
    int is_function;
};

struct opencl_macros {
    struct macro *all;
    unsigned int count, room;
};

/* A text that grows up to its bound; `failed`: it would have passed it. */
struct text {
    char bytes[MOST_BYTES];
    size_t size;
    int failed;
};

/* Macros that are being replaced, which stand for themselves within their own bodies. */
struct active {
    const struct macro *macro;
    const struct active *outer;
};

struct expansion {
    const struct opencl_macros *macros;
    unsigned int replacements;
    int failed;
};

static void put(struct text *to, const char *bytes, size_t size) {
    if (size > sizeof to->bytes - to->size) {
        to->failed = 1;
        return;
    }
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static int is_word(char letter) {
    return isalnum((unsigned char)letter) || letter == '_';
}

/* The length of the first token: a word, a string, blanks, or one character. */
static size_t token_length(const char *at, const char *end) {
    size_t length = 1;
    if (is_word(*at)) {
        while (at + length < end && is_word(at[length]))
            length++;
    } else if (isspace((unsigned char)*at)) {
        while (at + length < end && isspace((unsigned char)at[length]))
            length++;
    } else if (*at == '"' || *at == '\'') {
        while (at + length < end && at[length] != *at)
            length += at[length] == '\\' && at + length + 1 < end ? 2 : 1;
        if (at + length < end)
            length++;
    }
    return length;
}

static const char *skip_blanks(const char *at, const char *end) {
    while (at < end && isspace((unsigned char)*at))
        at++;
    return at;
}

static size_t trimmed(const char **at, size_t length) {
    while (length && isspace((unsigned char)**at)) {
        ++*at;
        length--;
    }
    while (length && isspace((unsigned char)(*at)[length - 1]))
        length--;
    return length;
}

/* ---- Definitions -------------------------------------------------------------------------------- */

static int is_named(const struct macro *macro, const char *name, size_t length) {
    return strncmp(macro->name, name, length) == 0 && macro->name[length] == 0;
}

static const struct macro *last_named(const struct opencl_macros *macros, const char *name, size_t length) {
    for (unsigned int i = macros->count; i-- > 0;)
        if (is_named(&macros->all[i], name, length))
            return &macros->all[i];
    return NULL;
}

static int are_equal(const struct macro *a, const struct macro *b) {
    if (strcmp(a->name, b->name) != 0 || strcmp(a->body, b->body) != 0 || a->is_function != b->is_function
        || a->parameter_count != b->parameter_count)
        return 0;
    for (unsigned int i = 0; i < a->parameter_count; i++)
        if (strcmp(a->parameters[i], b->parameters[i]) != 0)
            return 0;
    return 1;
}

/* True if it is kept: no equal one is there. The block with its texts is given away then. */
static int keep(struct opencl_macros *macros, const struct macro *macro) {
    for (unsigned int i = 0; i < macros->count; i++)
        if (are_equal(&macros->all[i], macro))
            return 0;
    if (macros->count == MOST_MACROS)
        return 0;
    if (macros->count == macros->room) {
        unsigned int room = 2 * macros->room + 32;
        struct macro *all = realloc(macros->all, room * sizeof *all);
        if (!all)
            return 0;
        macros->all = all;
        macros->room = room;
    }
    macros->all[macros->count++] = *macro;
    return 1;
}

/* Reads `NAME body`, `NAME(a, b) body`; or with `=` before the body, as options have it. */
static int define(struct opencl_macros *macros, const char *at, size_t length, int is_option) {
    char *block = malloc(length + 2), *end = block + length;
    struct macro macro = {.name = block};
    if (!block)
        return 0;
    memcpy(block, at, length);
    *end = end[1] = 0;
    char *rest = block;
    while (is_word(*rest))
        rest++;
    int fits = rest > block && !isdigit((unsigned char)*block);
    if (fits && *rest == '(') {
        macro.is_function = 1;
        *rest++ = 0;
        for (rest = (char *)skip_blanks(rest, end); fits && *rest && *rest != ')';) {
            char *name = rest;
            while (is_word(*rest))
                rest++;
            fits = rest > name && macro.parameter_count < MOST_PARAMETERS;
            char *next = (char *)skip_blanks(rest, end);
            fits = fits && (*next == ',' || *next == ')');
            if (!fits)
                break;
            macro.parameters[macro.parameter_count++] = name;
            int is_last = *next == ')';
            /* The bracket itself is where the last name ends, if nothing lies between. */
            *rest = 0;
            rest = is_last ? next : (char *)skip_blanks(next + 1, end);
            if (is_last)
                break;
        }
        rest += fits && rest < end;
    } else if (fits && *rest) {
        if (!is_option && !isspace((unsigned char)*rest))
            fits = 0;
        else if (!is_option || *rest != '=')
            *rest++ = 0;
    }
    if (fits) {
        if (is_option && *rest == '=')
            *rest++ = 0;
        else if (is_option)
            rest = end;
        const char *body = rest;
        size_t size = trimmed(&body, strlen(body));
        macro.body = (char *)body;
        macro.body[size] = 0;
    }
    fits = fits && keep(macros, &macro);
    if (!fits)
        free(block);
    return fits;
}

/* One `-D`: `at` begins behind it. With its quotes and without: runtimes differ in what quotes mean. */
static size_t define_option(struct opencl_macros *macros, const char *at) {
    size_t length = 0, plain_length = 0;
    int quoted = 0, has_quotes = 0;
    while (at[length] && (quoted || !isspace((unsigned char)at[length]))) {
        if (at[length] == '"')
            quoted = !quoted, has_quotes = 1;
        length++;
    }
    define(macros, at, length, 1);
    char *plain = has_quotes ? malloc(length) : NULL;
    if (plain) {
        for (size_t i = 0; i < length; i++) {
            int is_escape = at[i] == '\\' && i + 1 < length && at[i + 1] == '"';
            i += is_escape;
            if (is_escape || at[i] != '"')
                plain[plain_length++] = at[i];
        }
        define(macros, plain, plain_length, 1);
        free(plain);
    }
    return length;
}

struct opencl_macros *opencl_new_macros(const char *options) {
    struct opencl_macros *macros = calloc(1, sizeof *macros);
    for (const char *at = options; macros && at && (at = strstr(at, "-D"));) {
        int is_option = at == options || isspace((unsigned char)at[-1]);
        at += 2;
        if (is_option) {
            at += strspn(at, " \t");
            at += define_option(macros, at);
        }
    }
    return macros;
}

void opencl_free_macros(struct opencl_macros *macros) {
    if (!macros)
        return;
    for (unsigned int i = 0; i < macros->count; i++)
        free(macros->all[i].name);
    free(macros->all);
    free(macros);
}

/* A directive without what goes on over lines and without comments. The end of its lines. */
static const char *whole_line(const char *at, const char *end, struct text *line) {
    char quote = 0;
    for (; at < end && *at != '\n'; at++) {
        if (*at == '\\' && at + 1 < end && (at[1] == '\n' || (at[1] == '\r' && at + 2 < end && at[2] == '\n'))) {
            at += at[1] == '\r' ? 2 : 1;
            continue;
        }
        if (!quote && *at == '/' && at + 1 < end && at[1] == '/') {
            while (at < end && *at != '\n')
                at++;
            break;
        }
        if (!quote && *at == '/' && at + 1 < end && at[1] == '*') {
            for (at += 2; at + 1 < end && !(*at == '*' && at[1] == '/'); at++)
                ;
            put(line, " ", 1);
            at++;
            continue;
        }
        if (*at == '"' && (!quote || quote == *at))
            quote = quote ? 0 : *at;
        put(line, at, 1);
    }
    return at;
}

int opencl_note_macros(struct opencl_macros *macros, const char *text, size_t size) {
    const char *end = text + size;
    struct text *line = malloc(sizeof *line);
    int is_new = 0;
    for (const char *at = text; line && at < end; at++) {
        at = skip_blanks(at, end);
        if (at < end && *at == '#') {
            const char *word = at + 1;
            while (word < end && (*word == ' ' || *word == '\t'))
                word++;
            if (end - word > 7 && memcmp(word, "define", 6) == 0 && (word[6] == ' ' || word[6] == '\t')) {
                line->size = 0;
                line->failed = 0;
                at = whole_line(word + 7, end, line);
                const char *definition = line->bytes;
                size_t length = trimmed(&definition, line->size);
                if (!line->failed)
                    is_new |= define(macros, definition, length, 0);
            }
        }
        while (at < end && *at != '\n')
            at++;
    }
    free(line);
    return is_new;
}

/* ---- Replacement -------------------------------------------------------------------------------- */

struct argument {
    const char *at;
    size_t length;
};

static void expand(struct expansion *of, const char *at, size_t length, const struct active *active, struct text *to);

/* As `#` before a parameter makes a string. */
static void put_string(struct text *to, struct argument argument) {
    const char *at = argument.at, *end = at + trimmed(&at, argument.length);
    put(to, "\"", 1);
    while (at < end) {
        size_t length = token_length(at, end);
        if (isspace((unsigned char)*at)) {
            put(to, " ", 1);
        } else if (*at == '"' || *at == '\'') {
            for (size_t i = 0; i < length; i++) {
                if (at[i] == '"' || at[i] == '\\')
                    put(to, "\\", 1);
                put(to, at + i, 1);
            }
        } else {
            put(to, at, length);
        }
        at += length;
    }
    put(to, "\"", 1);
}

/* The arguments between the brackets at `at`; where they end, NULL: they are not those of the macro. */
static const char *read_arguments(const char *at, const char *end, const struct macro *macro, struct argument *arguments) {
    unsigned int count = 0, depth = 0;
    const char *begin = ++at;
    for (; at < end; at += token_length(at, end)) {
        if (*at == '(')
            depth++;
        if ((*at == ',' || *at == ')') && depth == 0) {
            if (count < macro->parameter_count)
                arguments[count] = (struct argument){begin, (size_t)(at - begin)};
            count++;
            begin = at + 1;
            if (*at == ')')
                break;
        } else if (*at == ')') {
            depth--;
        }
    }
    /* Empty brackets hold one empty argument, which a macro without parameters does not have. */
    int fits = at < end && (count == macro->parameter_count || (macro->parameter_count == 0 && count == 1));
    return fits ? at + 1 : NULL;
}

static int parameter_of(const struct macro *macro, const char *at, size_t length) {
    for (unsigned int i = 0; i < macro->parameter_count; i++)
        if (strncmp(macro->parameters[i], at, length) == 0 && macro->parameters[i][length] == 0)
            return (int)i;
    return -1;
}

/* The body with its arguments, before it is looked at again. */
static void substitute(struct expansion *of, const struct macro *macro, const struct argument *arguments, const struct active *active,
                       struct text *to) {
    const char *end = macro->body + strlen(macro->body);
    int is_pasted = 0;
    for (const char *at = macro->body; at < end;) {
        size_t length = token_length(at, end);
        if (*at == '#' && at + 1 < end && at[1] == '#') {
            while (to->size && isspace((unsigned char)to->bytes[to->size - 1]))
                to->size--;
            at = skip_blanks(at + 2, end);
            is_pasted = 1;
            continue;
        }
        if (*at == '#' && macro->is_function) {
            const char *name = skip_blanks(at + 1, end);
            size_t size = name < end ? token_length(name, end) : 0;
            int parameter = size ? parameter_of(macro, name, size) : -1;
            if (parameter >= 0) {
                put_string(to, arguments[parameter]);
                at = name + size;
                continue;
            }
        }
        int parameter = parameter_of(macro, at, length);
        const char *next = skip_blanks(at + length, end);
        int pastes = is_pasted || (end - next >= 2 && next[0] == '#' && next[1] == '#');
        if (parameter < 0)
            put(to, at, length);
        else if (pastes) {
            const char *argument = arguments[parameter].at;
            size_t size = trimmed(&argument, arguments[parameter].length);
            put(to, argument, size);
        } else {
            expand(of, arguments[parameter].at, arguments[parameter].length, active, to);
        }
        is_pasted = 0;
        at += length;
    }
}

/* Puts what stands for the macro at `at`, whose name ends at `behind`; where to go on. NULL: it stands for itself. */
static const char *replace(struct expansion *of, const struct macro *macro, const char *behind, const char *end,
                           const struct active *active, struct text *to) {
    struct argument arguments[MOST_PARAMETERS];
    struct active inner = {macro, active};
    for (const struct active *outer = active; outer; outer = outer->outer)
        if (outer->macro == macro)
            return NULL;
    if (macro->is_function) {
        const char *open = skip_blanks(behind, end);
        if (open == end || *open != '(' || !(behind = read_arguments(open, end, macro, arguments)))
            return NULL;
    }
    struct text *body = ++of->replacements <= MOST_REPLACEMENTS ? malloc(sizeof *body) : NULL;
    if (!body) {
        of->failed = 1;
        return behind;
    }
    body->size = 0;
    body->failed = 0;
    substitute(of, macro, arguments, active, body);
    of->failed |= body->failed;
    if (!of->failed)
        expand(of, body->bytes, body->size, &inner, to);
    free(body);
    return behind;
}

static void expand(struct expansion *of, const char *at, size_t length, const struct active *active, struct text *to) {
    const char *end = at + length;
    while (at < end && !of->failed) {
        size_t size = token_length(at, end);
        const struct macro *macro = is_word(*at) ? last_named(of->macros, at, size) : NULL;
        const char *next = macro ? replace(of, macro, at + size, end, active, to) : NULL;
        if (!next)
            put(to, at, size);
        at = next ? next : at + size;
    }
    of->failed |= to->failed;
}

int opencl_include_name(const struct opencl_macros *macros, unsigned int variant, const char *words, size_t length,
                        char name[PATH_MAX]) {
    const char *end = words + length, *at = skip_blanks(words, end);
    size_t size = at < end && is_word(*at) ? token_length(at, end) : 0;
    const struct macro *first = NULL;
    for (unsigned int i = 0, found = 0; size && i < macros->count && !first; i++)
        if (is_named(&macros->all[i], at, size) && found++ == variant)
            first = &macros->all[i];
    if (!first)
        return -1;
    struct expansion of = {.macros = macros};
    struct text *result = calloc(1, sizeof *result);
    int is_name = 0;
    if (result && replace(&of, first, at + size, end, NULL, result) && !of.failed && !result->failed) {
        const char *text = result->bytes;
        size_t whole = trimmed(&text, result->size);
        char closing = whole && *text == '<' ? '>' : '"';
        const char *last = whole > 2 && (*text == '"' || *text == '<') ? memchr(text + 1, closing, whole - 1) : NULL;
        is_name = last && last - text - 1 < PATH_MAX;
        if (is_name) {
            memcpy(name, text + 1, (size_t)(last - text - 1));
            name[last - text - 1] = 0;
        }
    }
    free(result);
    return is_name;
}
