/* A source of OpenCL C as tokens, and its functions and macros by name (lexer.c). Needs no OpenCL. */
#ifndef OPENCL_SLICING_LEXER_H
#define OPENCL_SLICING_LEXER_H

#include <stddef.h>

enum { TOKEN_NAME, TOKEN_OTHER };

struct slice_token {
    size_t at, length;
    int kind;
    unsigned directive; /* Number of the preprocessor line that it is on; 0: none. */
    unsigned depth;     /* Braces around it. */
    size_t match;       /* Of a parenthesis: the other one; 0: there is none. */
};

/* A function or a macro: a name, and the tokens that it stands for. */
struct slice_unit {
    size_t name, first, end;
    int is_function, ambiguous, reached, needs;
    size_t next; /* In its bucket, plus one. */
};

enum { SLICE_BUCKETS = 1024 };

struct slice_text {
    char *text;
    size_t length;
    struct slice_token *tokens;
    size_t count, room;
    struct slice_unit *units;
    size_t units_count, units_room;
    size_t buckets[SLICE_BUCKETS];
    unsigned char *outside; /* Per token: whether it is in no function. */
    char refused[128];
};

/* Built-in functions with another answer in a part of an NDRange; ends with NULL. */
extern const char *const slice_geometry[];

/* Reads a source into a zeroed text; 0: it is not understood, and `refused` says why. To be closed in either case. */
int slice_open(struct slice_text *t, const char *source);
void slice_close(struct slice_text *t);

/* Says, once, why the text is not understood; answers 0. */
int slice_refuse(struct slice_text *t, const char *why);

int slice_token_is(const struct slice_text *t, size_t token, const char *text);
/* `list` ends with NULL. */
int slice_token_in(const struct slice_text *t, size_t token, const char *const *list);
int slice_token_begins(const struct slice_text *t, size_t token, const char *with);
int slice_token_contains(const struct slice_text *t, size_t token, const char *part);

/* The first unit of a name, or the next one after `unit`; as an index plus one, 0: none. */
size_t slice_unit_named(const struct slice_text *t, const char *name, size_t length, size_t unit);

#endif
