/* Decides from a program's source if a kernel may be run in submissions, and makes the source for those that need another one.
 *
 * Every name that a kernel mentions is followed to all functions and macros of that name (lexer.c). A kernel in doubt is not
 * sliced. This is not there to see through a program that disguises itself: that program would only get wrong results of its own. */
#include "rewrite.h"
#include "lexer.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A macro of this name holds the build options. */
#define SLICE_OPTIONS "_aviary_options"

enum { USES_LOOP = 1, USES_ATOMICS = 2, USES_FENCE = 4, USES_GEOMETRY = 8, USES_PASTING = 16, USES_STATIC = 32, USES_NEVER = 64 };

/* ---- What a kernel uses ------------------------------------------------------------------------ */

static int uses(const struct slice_text *t, size_t i) {
    static const char *const loops[] = {"for", "while", "do", "goto", NULL};
    static const char *const fences[] = {"mem_fence", "read_mem_fence", "write_mem_fence", "CLK_GLOBAL_MEM_FENCE", "volatile", "__volatile__",
                                         "__volatile", NULL};
    static const char *const never[] = {"printf", "enqueue_kernel", "enqueue_marker", "get_default_queue", "queue_t", "clk_event_t", "asm",
                                        "__asm", "__asm__", NULL};
    static const char *const vendors_own[] = {"__builtin_", "__nvvm", "__spirv", "__amdgcn", "__llvm", "__pocl", "pocl_", "_pocl", "__ocl_", "ndrange", NULL};
    if (t->tokens[i].kind != TOKEN_NAME)
        return slice_token_is(t, i, "#") && slice_token_is(t, i + 1, "#") ? USES_PASTING : 0;
    if (slice_token_in(t, i, loops))
        return USES_LOOP;
    if (slice_token_contains(t, i, "atomic") || slice_token_contains(t, i, "Atomic") || slice_token_begins(t, i, "atom_") || slice_token_begins(t, i, "__sync_"))
        return USES_ATOMICS;
    if (slice_token_in(t, i, fences))
        return USES_FENCE;
    if (slice_token_in(t, i, slice_geometry))
        return USES_GEOMETRY;
    if (slice_token_is(t, i, "static") && t->tokens[i].depth + t->tokens[i].directive > 0)
        return USES_STATIC;
    for (const char *const *prefix = vendors_own; *prefix; prefix++)
        if (slice_token_begins(t, i, *prefix))
            return USES_NEVER;
    return slice_token_in(t, i, never) || slice_token_contains(t, i, "pipe") ? USES_NEVER : 0;
}

struct slice_search {
    struct slice_text *text;
    size_t *stack, top;
    int used;
};

static void reach(struct slice_search *s, const char *name, size_t length) {
    struct slice_text *t = s->text;
    for (size_t unit = slice_unit_named(t, name, length, 0); unit; unit = slice_unit_named(t, name, length, unit)) {
        if (t->units[unit - 1].reached)
            continue;
        t->units[unit - 1].reached = 1;
        s->stack[s->top++] = unit - 1;
    }
}

static void follow(struct slice_search *s) {
    struct slice_text *t = s->text;
    while (s->top > 0) {
        const struct slice_unit unit = t->units[s->stack[--s->top]];
        if (unit.ambiguous)
            slice_refuse(t, "the head of a function is not understood");
        for (size_t i = unit.first; i < unit.end; i++) {
            int used = uses(t, i);
            if (used == USES_NEVER && !t->refused[0])
                snprintf(t->refused, sizeof t->refused, "it uses %.*s", (int)t->tokens[i].length, t->text + t->tokens[i].at);
            s->used |= used;
            if (t->tokens[i].kind == TOKEN_NAME)
                reach(s, t->text + t->tokens[i].at, t->tokens[i].length);
        }
    }
}

static int is_function(const struct slice_text *t, const char *name) {
    size_t length = strlen(name);
    for (size_t unit = slice_unit_named(t, name, length, 0); unit; unit = slice_unit_named(t, name, length, unit))
        if (t->units[unit - 1].is_function)
            return 1;
    return 0;
}

static int names_macro(const struct slice_text *t, size_t i) {
    const char *name = t->text + t->tokens[i].at;
    for (size_t unit = slice_unit_named(t, name, t->tokens[i].length, 0); unit; unit = slice_unit_named(t, name, t->tokens[i].length, unit))
        if (!t->units[unit - 1].is_function && t->tokens[i].kind == TOKEN_NAME)
            return 1;
    return 0;
}

static enum slice_verdict judge(struct slice_text *t, const char *kernel) {
    struct slice_search search = {.text = t, .stack = calloc(t->units_count + 1, sizeof(size_t))};
    if (!search.stack)
        return SLICE_NEVER;
    if (!is_function(t, kernel))
        slice_refuse(t, "its definition is not in the source as such");
    reach(&search, kernel, strlen(kernel));
    follow(&search);
    if (search.used & USES_STATIC)
        slice_refuse(t, "it has static variables");
    /* Macros outside of functions may make functions. */
    for (size_t i = 0; i < t->count; i++)
        if (t->outside[i] && !t->tokens[i].directive && names_macro(t, i))
            reach(&search, t->text + t->tokens[i].at, t->tokens[i].length);
    reach(&search, SLICE_OPTIONS, strlen(SLICE_OPTIONS));
    follow(&search);
    free(search.stack);
    if (search.used & USES_PASTING)
        slice_refuse(t, "it uses macros that make new names (##)");
    if ((search.used & USES_LOOP) && (search.used & (USES_ATOMICS | USES_FENCE)))
        slice_refuse(t, search.used & USES_ATOMICS ? "it has loops and atomic functions: its work-groups may wait for each other"
                                                  : "it has loops and volatile or fenced memory: its work-groups may wait for each other");
    if (t->refused[0])
        return SLICE_NEVER;
    return search.used & USES_GEOMETRY ? SLICE_BY_REWRITING : SLICE_BY_OFFSET;
}

/* How a kernel may be sliced; if never, `reason` says why. */
enum slice_verdict slice_judge(const char *source, const char *options, const char *kernel, char *reason, size_t room) {
    struct slice_text text = {0};
    enum slice_verdict verdict = SLICE_NEVER;
    size_t size = strlen(options) + strlen(source) + 64;
    char *whole = malloc(size);
    if (!whole)
        slice_refuse(&text, "memory is short");
    else if (strstr(options, "CLC++") || strstr(options, "clc++") || strstr(options, "get_g") || strstr(options, "get_num_groups"))
        slice_refuse(&text, "its build options change too much");
    /* Names in the build options may stand for anything that a kernel mentions. */
    else if (snprintf(whole, size, "#define " SLICE_OPTIONS " %s\n%s", options, source) > 0 && slice_open(&text, whole))
        verdict = judge(&text, kernel);
    free(whole);
    snprintf(reason, room, "%s", verdict == SLICE_NEVER ? text.refused : "");
    slice_close(&text);
    return verdict;
}

/* ---- Another source ---------------------------------------------------------------------------- */

/* Built-in functions whose answers belong to the whole NDRange are computed from four more parameters of
 * every kernel and function that needs them: offset, size, number of groups, first group of the part. */
static const char slice_prologue[] =
    "size_t _aviary_of(ulong4 v, uint d) { return (size_t)(d == 0 ? v.x : d == 1 ? v.y : v.z); }\n"
    "size_t _aviary_group_id(ulong4 b, uint d) { return get_group_id(d) + (d < 3 ? _aviary_of(b, d) : 0); }\n"
    "size_t _aviary_num_groups(ulong4 g, uint d) { return d < 3 ? _aviary_of(g, d) : get_num_groups(d); }\n"
    "size_t _aviary_size(ulong4 n, uint d) { return d < 3 ? _aviary_of(n, d) : get_global_size(d); }\n"
    "size_t _aviary_offset(ulong4 o, uint d) { return d < 3 ? _aviary_of(o, d) : get_global_offset(d); }\n"
    "size_t _aviary_linear(ulong4 o, ulong4 n) {\n"
    "  return ((get_global_id(2) - (size_t)o.z) * (size_t)n.y + get_global_id(1) - (size_t)o.y) * (size_t)n.x\n"
    "         + get_global_id(0) - (size_t)o.x;\n}\n"
    "#define get_group_id(d) _aviary_group_id(_aviary_b, d)\n"
    "#define get_num_groups(d) _aviary_num_groups(_aviary_g, d)\n"
    "#define get_global_size(d) _aviary_size(_aviary_n, d)\n"
    "#define get_global_offset(d) _aviary_offset(_aviary_o, d)\n"
    "#define get_global_linear_id() _aviary_linear(_aviary_o, _aviary_n)\n"
    "#line 1\n";
static const char slice_parameters[] = "ulong4 _aviary_o, ulong4 _aviary_n, ulong4 _aviary_g, ulong4 _aviary_b";
static const char slice_arguments[] = "_aviary_o, _aviary_n, _aviary_g, _aviary_b";

static int names_needy(const struct slice_text *t, size_t i, int functions_only) {
    const char *name = t->text + t->tokens[i].at;
    if (t->tokens[i].kind != TOKEN_NAME)
        return 0;
    for (size_t unit = slice_unit_named(t, name, t->tokens[i].length, 0); unit; unit = slice_unit_named(t, name, t->tokens[i].length, unit))
        if (t->units[unit - 1].needs && (t->units[unit - 1].is_function || !functions_only))
            return 1;
    return 0;
}

/* Functions that mention a built-in of the list, or another such function. */
static void find_needy(struct slice_text *t) {
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t u = 0; u < t->units_count; u++)
            for (size_t i = t->units[u].first; !t->units[u].needs && i < t->units[u].end; i++)
                if (slice_token_in(t, i, slice_geometry) || (i != t->units[u].name && names_needy(t, i, 0)))
                    changed = t->units[u].needs = 1;
    }
}

/* The source with which a program's kernels can be told where they are; NULL if that cannot be written. */
char *slice_rewrite(const char *source) {
    struct slice_text t = {0};
    char *result = NULL;
    unsigned char *edits = NULL;
    size_t size = 0, copied = 0;
    FILE *out = slice_open(&t, source) ? open_memstream(&result, &size) : NULL;
    if (out && (edits = calloc(t.count + 1, 1))) {
        find_needy(&t);
        for (size_t i = 0; i + 1 < t.count; i++) {
            int defined = i >= 2 && t.tokens[i].directive && slice_token_is(&t, i - 1, "define") && slice_token_is(&t, i - 2, "#");
            if (!defined && slice_token_is(&t, i + 1, "(") && t.tokens[i + 1].match && names_needy(&t, i, 1))
                edits[t.tokens[i + 1].match] = t.tokens[i].depth == 0 && !t.tokens[i].directive ? 1 : 2;
        }
        fputs(slice_prologue, out);
        for (size_t i = 0; i < t.count; i++) {
            if (!edits[i])
                continue;
            size_t open = t.tokens[i].match, to = t.tokens[i].at;
            int none = open + 1 == i || (open + 2 == i && edits[i] == 1 && slice_token_is(&t, i - 1, "void"));
            if (none)
                to = t.tokens[open].at + 1;
            fwrite(t.text + copied, 1, to - copied, out);
            fprintf(out, "%s%s", none ? "" : ", ", edits[i] == 1 ? slice_parameters : slice_arguments);
            copied = t.tokens[i].at;
        }
        fwrite(t.text + copied, 1, t.length - copied, out);
    }
    if (out && (fclose(out) != 0 || !edits)) {
        free(result);
        result = NULL;
    }
    free(edits);
    slice_close(&t);
    return result;
}
