/* Files that a program's source includes, as the guest has sent them (guest/includes.c). They lie in a new folder of this process's
 * while the program is built: under `a` by their whole names. The options of the build name them there, and what the application
 * names by its working folder as `./a`, the same place, so that a log tells both from each other. No link is needed, which a
 * sandbox refuses. Questions about options and log get the application's own names. */
#include "server.h"
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How often an unfinished build is asked about. */
enum { BUILD_POLL_NS = 1000000 };

struct includes {
    struct includes *next;
    cl_program program;
    /* While files lie there; empty: they do not. */
    char root[PATH_MAX];
    /* The root of the last build, which its log may name; empty: none. */
    char last_root[PATH_MAX];
    /* The application's working folder at the last build. */
    char working[PATH_MAX];
    /* As the application gave them to the last build. */
    char *options;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct includes *records;
static size_t record_count, sweep_at = 64;

/* ---- The folder ------------------------------------------------------------------------------- */

static void remove_below(int parent, const char *name) {
    if (unlinkat(parent, name, 0) == 0)
        return;
    int folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *listing = folder >= 0 ? fdopendir(folder) : NULL;
    if (!listing) {
        if (folder >= 0)
            close(folder);
        return;
    }
    for (struct dirent *entry; (entry = readdir(listing));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove_below(folder, entry->d_name);
    closedir(listing);
    unlinkat(parent, name, AT_REMOVEDIR);
}

static void remove_root(struct includes *record) {
    if (record->root[0])
        remove_below(AT_FDCWD, record->root);
    record->root[0] = 0;
}

/* A name of a guest: absolute, and nothing in it leads up. */
static int is_plain(const char *name) {
    if (name[0] != '/' || strlen(name) >= PATH_MAX / 2)
        return 0;
    for (const char *part = name; *part;) {
        part += strspn(part, "/");
        size_t length = strcspn(part, "/");
        if (length > NAME_MAX || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
            return 0;
        part += length;
    }
    return 1;
}

/* The folders on the way to the end of `path`, which is below `root`; all of them if `whole`. Nothing but this process writes there,
 * so no link leads out. */
static int make_folders(char *path, size_t root, int whole) {
    for (char *at = path + root; (at = strchr(at + 1, '/'));) {
        *at = 0;
        int made = mkdir(path, 0700) == 0 || access(path, X_OK) == 0;
        *at = '/';
        if (!made)
            return 0;
    }
    return !whole || mkdir(path, 0700) == 0 || access(path, X_OK) == 0;
}

static int write_file(const char *path, const char *content, size_t size) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return 0;
    size_t done = 0;
    for (ssize_t n; done < size && (n = write(file, content + done, size - done)) > 0;)
        done += (size_t)n;
    close(file);
    return done == size;
}

/* A new folder. The same list has the same name again where no other process uses it: runtimes look for what they have built before
 * by the options, which name it. FNV-1a: a list that another one's name is meant for finds a folder that is there, or none. */
static int make_root(struct includes *record, const char *files, size_t size) {
    const char *folder = getenv("TMPDIR");
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ (unsigned char)files[i]) * 0x100000001b3;
    const char *parent = folder && *folder == '/' ? folder : "/tmp";
    int written = snprintf(record->root, sizeof record->root, "%s/aviary-%016llx", parent, (unsigned long long)sum);
    if (written < 512 && mkdir(record->root, 0700) == 0)
        return 1;
    written = snprintf(record->root, sizeof record->root, "%s/aviary-XXXXXX", parent);
    if (written < 512 && mkdtemp(record->root))
        return 1;
    record->root[0] = 0;
    return 0;
}

/* Lays out the list of a guest. 0: it is no such list, or there is no room for it. */
static int lay_out(struct includes *record, const char *files, size_t size) {
    char path[PATH_MAX];
    if (!make_root(record, files, size))
        return 0;
    size_t at = 0;
    for (unsigned int count = 0; at < size; count++) {
        const char *name = files + at;
        size_t length = strnlen(name, size - at);
        uint64_t noted;
        if (count == OPENCL_INCLUDED_FILES || length + 1 + sizeof noted > size - at || !is_plain(name))
            return 0;
        at += length + 1;
        memcpy(&noted, files + at, sizeof noted);
        at += sizeof noted;
        int is_folder = noted == OPENCL_INCLUDED_FOLDER;
        if (!is_folder && noted > size - at)
            return 0;
        int written = snprintf(path, sizeof path, "%s/a%s", record->root, name);
        if (written < 0 || (size_t)written >= sizeof path || !make_folders(path, strlen(record->root), is_folder))
            return 0;
        if (count == 0) {
            if (!is_folder)
                return 0;
            memcpy(record->working, name, length + 1);
        }
        if (!is_folder) {
            /* A file that is there twice keeps its first content. */
            if (!write_file(path, files + at, noted) && access(path, R_OK) != 0)
                return 0;
            at += noted;
        }
    }
    return 1;
}

/* ---- Records ---------------------------------------------------------------------------------- */

static struct includes *record_of(cl_program program) {
    const struct opencl_object *object = program ? metadata(struct opencl_object, program) : NULL;
    return object ? object->placed_includes : NULL;
}

static void drop_record(struct includes *record) {
    remove_root(record);
    free(record->options);
    free(record);
}

/* The records of programs that are gone; the lock is held. */
static void sweep(void) {
    if (record_count < sweep_at)
        return;
    for (struct includes **at = &records, *record; (record = *at);) {
        if (record_of(record->program) == record) {
            at = &record->next;
            continue;
        }
        *at = record->next;
        drop_record(record);
        record_count--;
    }
    sweep_at = 2 * record_count + 64;
}

static cl_int place(cl_program program, const char *files, size_t size) {
    struct opencl_object *object = program ? metadata(struct opencl_object, program) : NULL;
    if (!object || !files || size > OPENCL_INCLUDED_BYTES)
        return CL_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct includes *record = object->placed_includes;
    if (!record && (record = calloc(1, sizeof *record))) {
        sweep();
        record->program = program;
        record->next = records;
        records = record;
        record_count++;
        object->placed_includes = record;
    }
    int laid_out = 0;
    if (record) {
        remove_root(record);
        laid_out = lay_out(record, files, size);
        if (!laid_out)
            remove_root(record);
    }
    pthread_mutex_unlock(&lock);
    return laid_out ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
}

void *opencl_place_includes_function(void) {
    return (void *)place;
}

/* ---- Building --------------------------------------------------------------------------------- */

/* In a value of a macro, `path` and what follows up to the end of the word: true if it begins with a file or folder that lies here. */
static int is_laid_out(const char *root, const char *path) {
    char here[PATH_MAX];
    size_t length = strcspn(path, " \t\r\n\"\\");
    return *path == '/' && length > 1 && length < PATH_MAX / 2
           && snprintf(here, sizeof here, "%.512s/a%.*s", root, (int)length, path) < (int)sizeof here && access(here, F_OK) == 0;
}

/* The options with each folder of `-I` where it lies here, behind the working folder, in which runtimes look first; and with each
 * absolute name that `-D` gives to a macro, of which sources make the names of includes. NULL: no memory. */
static char *options_here(const char *root, const char *working, const char *options) {
    size_t folders = 1, size = strlen(options) + 1;
    for (const char *at = options; (at = strpbrk(at, "ID/")); at++)
        folders++;
    char *here = malloc(size + folders * (strlen(root) + strlen(working) + 16));
    if (!here)
        return NULL;
    char *to = here + sprintf(here, "-I %s/./a%s ", root, working);
    int defines = 0;
    for (const char *at = options; *at;) {
        int begins = at == options || isspace((unsigned char)at[-1]);
        if (begins && strncmp(at, "-D", 2) == 0) {
            defines = 1;
        } else if (begins && *at == '-') {
            defines = 0;
        }
        int begins_value = defines && at > options && strchr("=\"", at[-1]);
        if (begins_value && is_laid_out(root, at))
            to += sprintf(to, "%s/a", root);
        if (!begins || strncmp(at, "-I", 2) != 0) {
            *to++ = *at++;
            continue;
        }
        at += 2;
        at += strspn(at, " \t");
        to += sprintf(to, "-I ");
        if (*at == '"')
            *to++ = *at++;
        to += *at == '/' ? sprintf(to, "%s/a", root) : sprintf(to, "%s/./a%s/", root, working);
        while (*at && !isspace((unsigned char)*at) && *at != '"')
            *to++ = *at++;
    }
    *to = 0;
    return here;
}

/* A build whose end a callback tells may not have ended yet: its files are needed until then. */
static void await_build(cl_program program) {
    const struct timespec pause = {0, BUILD_POLL_NS};
    size_t bytes = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_DEVICES, 0, NULL, &bytes) != CL_SUCCESS)
        return;
    cl_device_id *devices = malloc(bytes ? bytes : 1);
    if (devices && clGetProgramInfo(program, CL_PROGRAM_DEVICES, bytes, devices, NULL) == CL_SUCCESS)
        for (size_t i = 0; i < bytes / sizeof *devices; i++) {
            cl_build_status status = CL_BUILD_NONE;
            while (clGetProgramBuildInfo(program, devices[i], CL_PROGRAM_BUILD_STATUS, sizeof status, &status, NULL) == CL_SUCCESS
                   && status == CL_BUILD_IN_PROGRESS)
                nanosleep(&pause, NULL);
        }
    free(devices);
}

/* The options to build with: those of the application, or where its files lie here. `made`: to be freed. */
static const char *begin_build(cl_program program, const char *options, struct includes **record, char **made) {
    *made = NULL;
    *record = record_of(program);
    if (!*record)
        return options;
    pthread_mutex_lock(&lock);
    free((*record)->options);
    (*record)->options = strdup(options ? options : "");
    memcpy((*record)->last_root, (*record)->root, sizeof (*record)->root);
    if ((*record)->root[0])
        *made = options_here((*record)->root, (*record)->working, options ? options : "");
    pthread_mutex_unlock(&lock);
    return *made ? *made : options;
}

static void end_build(cl_program program, struct includes *record, char *made) {
    if (!record)
        return;
    if (made)
        await_build(program);
    pthread_mutex_lock(&lock);
    remove_root(record);
    pthread_mutex_unlock(&lock);
    free(made);
}

typedef void (CL_CALLBACK *notify_function)(cl_program, void *);

static cl_int build(cl_program program, cl_uint count, const cl_device_id *devices, const char *options, notify_function notify, void *data) {
    struct includes *record;
    char *made;
    options = begin_build(program, options, &record, &made);
    cl_int status = clBuildProgram(program, count, devices, options, notify, data);
    end_build(program, record, made);
    return status;
}

static cl_int compile(cl_program program, cl_uint count, const cl_device_id *devices, const char *options, cl_uint headers,
                      const cl_program *header, const char **names, notify_function notify, void *data) {
    struct includes *record;
    char *made;
    options = begin_build(program, options, &record, &made);
    cl_int status = clCompileProgram(program, count, devices, options, headers, header, names, notify, data);
    end_build(program, record, made);
    return status;
}

void *opencl_build_function(cl_program program) {
    return record_of(program) ? (void *)build : (void *)clBuildProgram;
}

void *opencl_compile_function(cl_program program) {
    return record_of(program) ? (void *)compile : (void *)clCompileProgram;
}

/* ---- Questions about the last build ------------------------------------------------------------ */

/* Takes `<root>/a` and `<root>/./a<working>/` out of the text. */
static void restore_names(char *text, const char *root, const char *working) {
    size_t length = strlen(root), folder = strlen(working);
    char *to = text;
    for (const char *at = text; *at;) {
        const char *behind = strncmp(at, root, length) == 0 ? at + length : "";
        if (strncmp(behind, "/a/", 3) == 0)
            at = behind + 2;
        else if (strncmp(behind, "/./a", 4) == 0 && strncmp(behind + 4, working, folder) == 0 && behind[4 + folder] == '/')
            at = behind + 4 + folder + 1;
        else
            *to++ = *at++;
    }
    *to = 0;
}

/* The text that answers this question with the application's own names; NULL: the runtime's answer is right. */
static char *answer_of(cl_program program, cl_device_id device, cl_program_build_info name) {
    size_t bytes = 0;
    char *text = NULL;
    if ((name != CL_PROGRAM_BUILD_OPTIONS && name != CL_PROGRAM_BUILD_LOG)
        || clGetProgramBuildInfo(program, device, name, 0, NULL, &bytes) != CL_SUCCESS)
        return NULL;
    if (name == CL_PROGRAM_BUILD_LOG && (text = malloc(bytes + 1))) {
        if (clGetProgramBuildInfo(program, device, name, bytes, text, NULL) != CL_SUCCESS) {
            free(text);
            return NULL;
        }
        text[bytes] = 0;
    }
    pthread_mutex_lock(&lock);
    const struct includes *record = record_of(program);
    if (name == CL_PROGRAM_BUILD_OPTIONS)
        text = record && record->options ? strdup(record->options) : NULL;
    else if (text && record && record->last_root[0])
        restore_names(text, record->last_root, record->working);
    pthread_mutex_unlock(&lock);
    return text;
}

static cl_int build_info(cl_program program, cl_device_id device, cl_program_build_info name, size_t size, void *value, size_t *written) {
    char *text = answer_of(program, device, name);
    if (!text)
        return clGetProgramBuildInfo(program, device, name, size, value, written);
    size_t needed = strlen(text) + 1;
    cl_int status = value && size < needed ? CL_INVALID_VALUE : CL_SUCCESS;
    if (value && status == CL_SUCCESS)
        memcpy(value, text, needed);
    if (written && status == CL_SUCCESS)
        *written = needed;
    free(text);
    return status;
}

void *opencl_build_info_function(cl_program program) {
    return record_of(program) ? (void *)build_info : (void *)clGetProgramBuildInfo;
}
