/* Files that a program's source includes. Natively the runtime reads them where the application is: relative to its working folder,
 * or in the folders of `-I`. Here the guest reads them and the server lays them out for the build.
 *
 * Which of the candidates an `#include` means is the compiler's business: all that are there travel, with what they include
 * themselves. Names that macros make are those that include_names.c finds. */
#include "guest.h"
#include "include_names.h"
#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Findings, in the form of aviaryPlaceIncludes. */
struct included {
    char *text;
    size_t size, room;
    unsigned int count;
    /* Of each file and folder, where its record begins. */
    size_t at[OPENCL_INCLUDED_FILES];
    /* Set when a name is met that macros make. */
    int has_made_names;
    /* NULL: such names are passed over. */
    struct opencl_macros *macros;
};

/* Rounds over all files for names that macros make: a file may define what another one includes. */
enum { MOST_ROUNDS = 32 };

/* The folders in which includes are looked for: the working folder, then those of the options. */
#define MAX_FOLDERS 128
struct folders {
    char *path[MAX_FOLDERS];
    unsigned int count;
};

/* `path` as seen from `folder`, without `.`, `..` and repeated slashes; 0: too long. */
static int join(char to[PATH_MAX], const char *folder, const char *path, size_t length) {
    char whole[2 * PATH_MAX];
    size_t begin = strlen(folder), at = 0;
    if (length == 0 || length >= PATH_MAX || begin >= PATH_MAX)
        return 0;
    memcpy(whole, folder, begin);
    whole[begin] = '/';
    memcpy(whole + begin + 1, path, length);
    whole[begin + 1 + length] = 0;
    for (const char *part = path[0] == '/' ? whole + begin + 1 : whole; *part;) {
        size_t size = strcspn(part, "/");
        if (size == 2 && part[0] == '.' && part[1] == '.') {
            while (at > 0 && to[--at] != '/')
                ;
        } else if (size > 0 && !(size == 1 && part[0] == '.')) {
            if (at + size + 2 > PATH_MAX)
                return 0;
            to[at++] = '/';
            memcpy(to + at, part, size);
            at += size;
        }
        part += size;
        part += strspn(part, "/");
    }
    to[at] = 0;
    return at > 0;
}

static int is_known(const struct included *all, const char *path) {
    for (unsigned int i = 0; i < all->count; i++)
        if (strcmp(all->text + all->at[i], path) == 0)
            return 1;
    return 0;
}

/* Makes room for a record; where its content goes, or NULL. */
static char *append(struct included *all, const char *path, uint64_t noted, size_t content) {
    size_t name = strlen(path) + 1, whole = name + sizeof noted + content;
    if (all->count == OPENCL_INCLUDED_FILES || whole > OPENCL_INCLUDED_BYTES - all->size)
        return NULL;
    if (all->size + whole > all->room) {
        size_t room = 2 * (all->size + whole);
        char *text = realloc(all->text, room);
        if (!text)
            return NULL;
        all->text = text;
        all->room = room;
    }
    all->at[all->count++] = all->size;
    char *to = all->text + all->size;
    memcpy(to, path, name);
    memcpy(to + name, &noted, sizeof noted);
    all->size += whole;
    return to + name + sizeof noted;
}

static void append_folder(struct included *all, const char *path) {
    if (!is_known(all, path))
        append(all, path, OPENCL_INCLUDED_FOLDER, 0);
}

/* The folders that a name with `..` in it passes: the compiler goes that way, too. */
static void append_way(struct included *all, const char *base, const char *name, size_t length) {
    char path[PATH_MAX];
    struct stat facts;
    for (size_t i = 0; i + 2 < length; i++)
        if (name[i] == '/' && name[i + 1] == '.' && name[i + 2] == '.' && join(path, base, name, i ? i : 1) && stat(path, &facts) == 0
            && S_ISDIR(facts.st_mode))
            append_folder(all, path);
}

static void append_file(struct included *all, const char *path) {
    struct stat facts;
    if (is_known(all, path))
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return;
    if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && (uint64_t)facts.st_size <= OPENCL_INCLUDED_BYTES) {
        size_t size = (size_t)facts.st_size, done = 0;
        size_t before = all->size;
        char *to = append(all, path, size, size);
        for (ssize_t n; to && done < size && (n = read(file, to + done, size - done)) > 0;)
            done += (size_t)n;
        /* One that shrinks while it is read is left out. */
        if (to && done < size) {
            all->size = before;
            all->count--;
        }
    }
    close(file);
}

/* The name of an `#include`, or the words that macros make it of. */
struct include {
    const char *name;
    size_t length;
    int is_made;
};

/* The next `#include` of the text; where to go on, NULL: there is none. */
static const char *next_include(const char *at, const char *end, struct include *found) {
    for (int at_start = 1; at < end; at++) {
        if (*at == '\n') {
            at_start = 1;
            continue;
        }
        if (*at != '#' || !at_start) {
            at_start &= *at == ' ' || *at == '\t' || *at == '\r';
            continue;
        }
        at_start = 0;
        const char *word = at + 1;
        while (word < end && (*word == ' ' || *word == '\t'))
            word++;
        if ((size_t)(end - word) < 8 || memcmp(word, "include", 7) != 0)
            continue;
        for (word += 7; word < end && (*word == ' ' || *word == '\t'); word++)
            ;
        if (word == end || *word == '\n')
            continue;
        found->is_made = *word != '"' && *word != '<';
        found->name = found->is_made ? word : word + 1;
        char closing = found->is_made ? '\n' : *word == '"' ? '"' : '>';
        const char *last = word + 1;
        while (last < end && *last != closing && *last != '\n')
            last++;
        if (!found->is_made && (last == end || *last != closing))
            continue;
        found->length = (size_t)(last - found->name);
        /* The end of a line begins the next one. */
        return found->is_made ? last - 1 : last;
    }
    return NULL;
}

static void append_candidates(struct included *all, const struct folders *folders, const char *own, const char *name, size_t length) {
    char path[PATH_MAX];
    for (unsigned int i = 0; i <= folders->count; i++) {
        const char *folder = i ? folders->path[i - 1] : own;
        if (!folder || !join(path, folder, name, length))
            continue;
        append_way(all, folder, name, length);
        append_file(all, path);
    }
}

static void follow(struct included *all, const struct folders *folders, const char *own, const char *text, size_t size) {
    char name[PATH_MAX];
    const char *end = text + size;
    struct include found;
    for (const char *at = text; (at = next_include(at, end, &found)); at++) {
        if (!found.is_made)
            append_candidates(all, folders, own, found.name, found.length);
        all->has_made_names |= found.is_made;
        for (unsigned int variant = 0; found.is_made && all->macros; variant++) {
            int is_name = opencl_include_name(all->macros, variant, found.name, found.length, name);
            if (is_name < 0)
                break;
            if (is_name)
                append_candidates(all, folders, own, name, strlen(name));
        }
    }
}

static void add_folder(struct included *all, struct folders *folders, const char *base, const char *name, size_t length) {
    char path[PATH_MAX];
    struct stat facts;
    if (folders->count == MAX_FOLDERS || !join(path, base, name, length) || stat(path, &facts) != 0 || !S_ISDIR(facts.st_mode))
        return;
    append_way(all, base, name, length);
    append_folder(all, path);
    if ((folders->path[folders->count] = strdup(path)))
        folders->count++;
}

/* The folders of `-I folder`, `-Ifolder`, `-I "a folder"`. */
static void add_folders(struct included *all, struct folders *folders, const char *base, const char *options) {
    for (const char *at = options; (at = strstr(at, "-I"));) {
        int is_option = at == options || isspace((unsigned char)at[-1]);
        at += 2;
        if (!is_option)
            continue;
        at += strspn(at, " \t");
        int quoted = *at == '"';
        at += quoted;
        size_t length = strcspn(at, quoted ? "\"" : " \t\n\r\"");
        add_folder(all, folders, base, at, length);
        at += length;
    }
}

void opencl_note_includes(cl_program program, cl_uint count, const char **texts, const size_t *lengths) {
    struct opencl_object *object = object_of(program);
    for (cl_uint i = 0; object && texts && i < count; i++) {
        struct include found;
        size_t size = lengths && lengths[i] ? lengths[i] : texts[i] ? strlen(texts[i]) : 0;
        if (texts[i] && next_include(texts[i], texts[i] + size, &found))
            object->includes = 1;
    }
}

/* Adds what the source and all files so far include, and what those include. True if a macro is new. */
static int follow_all(struct included *all, const struct folders *folders, const char *source) {
    size_t length = strlen(source);
    int is_new = all->macros && opencl_note_macros(all->macros, source, length);
    follow(all, folders, NULL, source, length);
    for (unsigned int i = 0; i < all->count; i++) {
        /* The text may move while files are added. */
        const char *name = all->text + all->at[i];
        uint64_t noted;
        memcpy(&noted, name + strlen(name) + 1, sizeof noted);
        if (noted == OPENCL_INCLUDED_FOLDER)
            continue;
        char *own = strndup(name, (size_t)(strrchr(name, '/') - name));
        char *content = malloc(noted ? noted : 1);
        if (own && content) {
            memcpy(content, name + strlen(name) + 1 + sizeof noted, noted);
            is_new |= all->macros && opencl_note_macros(all->macros, content, noted);
            follow(all, folders, own, content, noted);
        }
        free(own);
        free(content);
    }
    return is_new;
}

/* Sends what the program may include, before it is built. Not 0: it did not arrive, and a build would miss it. */
int opencl_place_includes(cl_program program, const char *options) {
    const struct opencl_object *object = object_of(program);
    char here[PATH_MAX];
    size_t size = 0;
    cl_int placed = CL_SUCCESS;
    if (!object || !object->includes || !getcwd(here, sizeof here) || here[0] != '/'
        || clGetProgramInfo(program, CL_PROGRAM_SOURCE, 0, NULL, &size) != CL_SUCCESS || size == 0)
        return 0;
    struct included *all = calloc(1, sizeof *all);
    char *source = calloc(1, size + 1);
    struct folders folders = {.count = 0};
    if (all && source && clGetProgramInfo(program, CL_PROGRAM_SOURCE, size, source, NULL) == CL_SUCCESS) {
        append_folder(all, here);
        add_folder(all, &folders, "", here, strlen(here));
        add_folders(all, &folders, here, options ? options : "");
        follow_all(all, &folders, source);
        if (all->has_made_names && (all->macros = opencl_new_macros(options)))
            for (int round = 0; round < MOST_ROUNDS; round++)
                if (!follow_all(all, &folders, source))
                    break;
        if (all->count)
            placed = aviaryPlaceIncludes(program, all->text, all->size);
    }
    for (unsigned int i = 0; i < folders.count; i++)
        free(folders.path[i]);
    if (all) {
        opencl_free_macros(all->macros);
        free(all->text);
    }
    free(all);
    free(source);
    return placed != CL_SUCCESS;
}
