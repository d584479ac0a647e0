/* A source as tokens, and its functions and macros by name.
 *
 * This is a lexer, not a parser: it knows braces, parentheses and preprocessor lines, and takes every branch of #if. */
#include "lexer.h"
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int slice_refuse(struct slice_text *t, const char *why) {
    if (!t->refused[0])
        snprintf(t->refused, sizeof t->refused, "%s", why);
    return 0;
}

/* ---- Tokens ------------------------------------------------------------------------------------ */

int slice_token_is(const struct slice_text *t, size_t token, const char *text) {
    return token < t->count && t->tokens[token].length == strlen(text)
           && memcmp(t->text + t->tokens[token].at, text, t->tokens[token].length) == 0;
}

int slice_token_in(const struct slice_text *t, size_t token, const char *const *list) {
    for (; *list; list++)
        if (slice_token_is(t, token, *list))
            return 1;
    return 0;
}

int slice_token_begins(const struct slice_text *t, size_t token, const char *with) {
    size_t length = strlen(with);
    return t->tokens[token].length >= length && memcmp(t->text + t->tokens[token].at, with, length) == 0;
}

int slice_token_contains(const struct slice_text *t, size_t token, const char *part) {
    size_t length = strlen(part);
    for (size_t i = 0; i + length <= t->tokens[token].length; i++)
        if (memcmp(t->text + t->tokens[token].at + i, part, length) == 0)
            return 1;
    return 0;
}

/* Lines that end in a backslash become one, so that no name is in two pieces. */
static void splice_lines(struct slice_text *t) {
    size_t to = 0;
    for (size_t from = 0; from < t->length; from++) {
        size_t end = from + 1;
        if (t->text[from] == '\\') {
            while (end < t->length && (t->text[end] == ' ' || t->text[end] == '\t' || t->text[end] == '\r'))
                end++;
            if (end < t->length && t->text[end] == '\n') {
                from = end;
                continue;
            }
        }
        t->text[to++] = t->text[from];
    }
    t->text[to] = 0;
    t->length = to;
}

/* Room for one more item: the items, moved if they had to be; NULL: memory is short, which is told. */
static void *with_room(struct slice_text *t, void *items, size_t count, size_t *room, size_t first, size_t size) {
    if (count < *room)
        return items;
    size_t more = *room ? 2 * *room : first;
    void *larger = realloc(items, more * size);
    if (larger)
        *room = more;
    else
        slice_refuse(t, "memory is short");
    return larger;
}

static int add_token(struct slice_text *t, size_t at, size_t length, int kind, unsigned directive, unsigned depth) {
    struct slice_token *tokens = with_room(t, t->tokens, t->count, &t->room, 1024, sizeof *tokens);
    if (!tokens)
        return 0;
    t->tokens = tokens;
    t->tokens[t->count++] = (struct slice_token){.at = at, .length = length, .kind = kind, .directive = directive, .depth = depth};
    return 1;
}

static size_t quoted_end(const struct slice_text *t, size_t at) {
    char quote = t->text[at++];
    while (at < t->length && t->text[at] != quote && t->text[at] != '\n')
        at += t->text[at] == '\\' && at + 1 < t->length ? 2 : 1;
    return at < t->length ? at + 1 : at;
}

/* Where a comment that starts here ends; `at` if none does. */
static size_t comment_end(const struct slice_text *t, size_t at) {
    const char *text = t->text + at, *end = NULL;
    if (text[0] != '/' || (text[1] != '/' && text[1] != '*'))
        return at;
    if (text[1] == '/')
        end = strchr(text, '\n');
    else if ((end = strstr(text + 2, "*/")))
        end += 2;
    return end ? (size_t)(end - t->text) : t->length;
}

static int slice_lex(struct slice_text *t) {
    unsigned directive = 0, directives = 0, depth = 0;
    int line_begins = 1;
    splice_lines(t);
    if (strlen(t->text) != t->length)
        return slice_refuse(t, "its source has a zero byte");
    for (size_t at = 0, end; at < t->length; at = end) {
        unsigned char c = (unsigned char)t->text[at], after = (unsigned char)t->text[at + 1];
        end = comment_end(t, at);
        if (end > at)
            continue;
        end = at + 1;
        if (c == '\n') {
            line_begins = 1;
            directive = 0;
        }
        if (isspace(c))
            continue;
        if (c == '#' && line_begins)
            directive = ++directives;
        line_begins = 0;
        if ((c == '?' && after == '?') || (c == '<' && after == '%') || (c == '%' && (after == '>' || after == ':')) || c == '\\')
            return slice_refuse(t, "its source has trigraphs, digraphs or a backslash");
        int kind = TOKEN_OTHER;
        if (c == '"' || c == '\'') {
            end = quoted_end(t, at);
        } else if (isalpha(c) || c == '_' || c == '$' || c >= 128) {
            kind = TOKEN_NAME;
            while (isalnum((unsigned char)t->text[end]) || t->text[end] == '_' || t->text[end] == '$' || (unsigned char)t->text[end] >= 128)
                end++;
        } else if (isdigit(c) || (c == '.' && isdigit(after))) {
            while (isalnum((unsigned char)t->text[end]) || t->text[end] == '.' || t->text[end] == '_')
                end++;
        } else if (!directive && c == '}') {
            if (depth-- == 0)
                return slice_refuse(t, "its braces do not match");
        }
        if (!add_token(t, at, end - at, kind, directive, depth))
            return 0;
        if (!directive && c == '{')
            depth++;
    }
    return depth == 0 || slice_refuse(t, "its braces do not match");
}

/* Parentheses find each other; those of a preprocessor line within it. */
static int match_parentheses(struct slice_text *t) {
    size_t *open = calloc(t->count + 1, sizeof *open), top = 0, base = 0;
    if (!open)
        return slice_refuse(t, "memory is short");
    unsigned line = 0;
    for (size_t i = 0; i < t->count; i++) {
        if (t->tokens[i].directive != line) {
            if (line)
                top = base; /* What a preprocessor line left open stays so. */
            base = top;
            line = t->tokens[i].directive;
        }
        if (slice_token_is(t, i, "(")) {
            open[top++] = i;
        } else if (slice_token_is(t, i, ")")) {
            if (top > (line ? base : 0)) {
                t->tokens[i].match = open[--top];
                t->tokens[open[top]].match = i;
            } else if (!line) {
                top = SIZE_MAX;
                break;
            }
        }
    }
    free(open);
    return (top != SIZE_MAX && (line || top == 0)) || slice_refuse(t, "its parentheses do not match");
}

/* ---- Functions and macros ---------------------------------------------------------------------- */

static size_t bucket_of(const char *name, size_t length) {
    size_t hash = 5381;
    while (length--)
        hash = hash * 33 + (unsigned char)*name++;
    return hash % SLICE_BUCKETS;
}

static int add_unit(struct slice_text *t, struct slice_unit unit) {
    struct slice_unit *units = with_room(t, t->units, t->units_count, &t->units_room, 256, sizeof *units);
    if (!units)
        return 0;
    t->units = units;
    size_t *bucket = &t->buckets[bucket_of(t->text + t->tokens[unit.name].at, t->tokens[unit.name].length)];
    unit.next = *bucket;
    t->units[t->units_count++] = unit;
    *bucket = t->units_count;
    return 1;
}

/* The first unit of a name, or the next one after `unit`; as an index plus one, 0: none. */
size_t slice_unit_named(const struct slice_text *t, const char *name, size_t length, size_t unit) {
    size_t found = unit ? t->units[unit - 1].next : t->buckets[bucket_of(name, length)];
    for (; found; found = t->units[found - 1].next) {
        const struct slice_token *token = &t->tokens[t->units[found - 1].name];
        if (token->length == length && memcmp(t->text + token->at, name, length) == 0)
            break;
    }
    return found;
}

/* Built-ins whose answer differs in a submission of an NDRange. */
const char *const slice_geometry[] = {"get_group_id",      "get_num_groups",       "get_global_size",
                                             "get_global_offset", "get_global_linear_id", NULL};
static const char *const untouchable[] = {"get_group_id",      "get_num_groups",       "get_global_size", "get_global_offset",
                                          "get_global_linear_id", "get_global_id", "get_local_id", "get_local_size", NULL};

static int read_directive(struct slice_text *t, size_t at, size_t end) {
    static const char *const includes[] = {"include", "include_next", "import", NULL};
    if (slice_token_in(t, at + 1, includes))
        return slice_refuse(t, "its source includes other files");
    int defines = slice_token_is(t, at + 1, "define");
    if (at + 2 < end && (defines || slice_token_is(t, at + 1, "undef")) && slice_token_in(t, at + 2, untouchable))
        return slice_refuse(t, "its source redefines a built-in function");
    if (!defines || at + 2 >= end)
        return 1;
    return add_unit(t, (struct slice_unit){.name = at + 2, .first = at + 3, .end = end});
}

static int is_attribute(const struct slice_text *t, size_t i) {
    static const char *const words[] = {"__attribute__", "__attribute", NULL};
    return slice_token_in(t, i, words) && slice_token_is(t, i + 1, "(");
}

/* True if a declaration at file scope, of these tokens, makes no variable that kernels could write. */
static int harmless_declaration(const struct slice_text *t, size_t first, size_t end) {
    static const char *const constants[] = {"constant", "__constant", NULL};
    static const char *const globals[] = {"global", "__global", "=", NULL};
    static const char *const kinds[] = {"struct", "union", "enum", NULL};
    size_t words = 0, before = 0, last_parenthesis = 0, last = 0;
    int suspicious = 0, braces = 0;
    if (slice_token_is(t, first, "typedef"))
        return 1;
    for (size_t i = first; i < end; i++) {
        if (t->tokens[i].directive)
            continue;
        if (is_attribute(t, i)) {
            i = t->tokens[i + 1].match;
            continue;
        }
        if (t->tokens[i].depth > 0 || slice_token_is(t, i, "}")) {
            braces = 1;
            continue;
        }
        if (slice_token_in(t, i, constants))
            return 1;
        suspicious |= slice_token_in(t, i, globals);
        words++;
        last = i;
        if (slice_token_is(t, i, "(")) {
            if (!last_parenthesis)
                before = words - 1;
            i = last = last_parenthesis = t->tokens[i].match;
        }
    }
    if (words == 0)
        return 1;
    if (slice_token_in(t, first, kinds) && !last_parenthesis)
        return braces ? slice_token_is(t, last, "{") : words == 2;
    return !suspicious && !braces && before >= 2 && last == last_parenthesis;
}

/* A function whose body starts at `brace`; it is known by every name of its head that parameters could follow. */
static int read_function(struct slice_text *t, size_t first, size_t brace, size_t end) {
    size_t names[8], found = 0;
    for (size_t i = first; i + 1 < brace; i++) {
        if (t->tokens[i].directive)
            continue;
        if (is_attribute(t, i)) {
            i = t->tokens[i + 1].match;
        } else if (slice_token_is(t, i + 1, "(") && t->tokens[i].kind == TOKEN_NAME && !t->tokens[i + 1].directive) {
            if (found == sizeof names / sizeof names[0])
                return slice_refuse(t, "its source is not understood");
            names[found++] = i;
            i = t->tokens[i + 1].match;
        } else if (slice_token_is(t, i, "(")) {
            i = t->tokens[i].match;
        }
    }
    for (size_t n = 0; n < found; n++)
        if (!add_unit(t, (struct slice_unit){.name = names[n], .first = first, .end = end, .is_function = 1, .ambiguous = found > 1}))
            return 0;
    if (found)
        memset(t->outside + brace, 0, end - brace);
    return found != 0;
}

/* True if a brace at file scope opens a type's members or a variable's values. */
static int is_data(const struct slice_text *t, size_t first, size_t brace) {
    static const char *const kinds[] = {"struct", "union", "enum", NULL};
    int names = 0, is_type = 1, is_value = 0;
    for (size_t i = brace; i-- > first;) {
        if (t->tokens[i].directive)
            continue;
        is_value |= t->tokens[i].depth == 0 && slice_token_is(t, i, "=");
        if (is_type && slice_token_in(t, i, kinds))
            return 1;
        if (is_type && slice_token_is(t, i, ")") && t->tokens[i].match > first && is_attribute(t, t->tokens[i].match - 1))
            i = t->tokens[i].match - 1;
        else if (t->tokens[i].kind != TOKEN_NAME || names++ > 0)
            is_type = 0;
    }
    return is_value;
}

/* Splits the file into preprocessor lines, functions and declarations. */
static int read_units(struct slice_text *t) {
    size_t first = 0;
    int is_body = 0;
    memset(t->outside, 1, t->count);
    for (size_t i = 0; i < t->count; i++) {
        size_t end = i + 1;
        if (t->tokens[i].directive) {
            while (end < t->count && t->tokens[end].directive == t->tokens[i].directive)
                end++;
            if (!read_directive(t, i, end))
                return 0;
            if (first == i)
                first = end;
            i = end - 1;
            continue;
        }
        if (t->tokens[i].depth > 0)
            continue;
        if (slice_token_is(t, i, "{")) {
            size_t close = i + 1;
            while (t->tokens[close].depth > 0 || t->tokens[close].directive)
                close++;
            size_t before = i;
            while (before > first && t->tokens[before - 1].directive)
                before--;
            is_body = before > first && slice_token_is(t, before - 1, ")") && read_function(t, first, i, close + 1);
            if (t->refused[0])
                return 0;
            if (!is_body && !is_data(t, first, i))
                return slice_refuse(t, "the head of a function is not understood");
        } else if (slice_token_is(t, i, "}") && is_body) {
            is_body = 0;
            first = end;
        } else if (slice_token_is(t, i, ";")) {
            if (!harmless_declaration(t, first, i))
                return slice_refuse(t, "its program has variables of its own, or what cannot be told from them");
            first = end;
        }
    }
    return 1;
}

/* ---- Whole sources ------------------------------------------------------------------------------ */

void slice_close(struct slice_text *t) {
    free(t->text);
    free(t->tokens);
    free(t->units);
    free(t->outside);
}

int slice_open(struct slice_text *t, const char *source) {
    t->length = strlen(source);
    t->text = strdup(source);
    if (!t->text || !slice_lex(t) || !match_parentheses(t))
        return t->text ? 0 : slice_refuse(t, "memory is short");
    t->outside = malloc(t->count + 1);
    return t->outside ? read_units(t) : slice_refuse(t, "memory is short");
}
