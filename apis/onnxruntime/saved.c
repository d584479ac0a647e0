/* Files that the library writes for a session: the API server has them, in a folder that is gone before the guest hears of the session,
 * and the guest takes them and writes the application's.
 *
 * A guest that takes none has as many as there is room for. */
#include <aviary/server.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "external.h"
#include "saved.h"

enum { MOST_SAVED = 256 };
static struct saved {
    const OrtSession *session;
    uint32_t which;
    int file;
    /* Of a profile: what its name has behind the application's prefix. */
    char ending[64];
} saved[MOST_SAVED];
static pthread_mutex_t saved_lock = PTHREAD_MUTEX_INITIALIZER;

static struct saved *saved_of(const OrtSession *session, uint32_t which) {
    for (size_t n = 0; n < MOST_SAVED; n++)
        if (saved[n].session == session && (!session || saved[n].which == which))
            return &saved[n];
    return NULL;
}

/* Keeps the file for the guest; 0 if there is no room. */
static int keep(const OrtSession *session, uint32_t which, int file, const char *ending) {
    pthread_mutex_lock(&saved_lock);
    /* A session that has ended, and whose file was not taken, may have had this address. */
    struct saved *place = saved_of(session, which);
    if (place)
        close(place->file);
    else
        place = saved_of(NULL, which);
    if (place) {
        *place = (struct saved){session, which, file, ""};
        snprintf(place->ending, sizeof place->ending, "%s", ending);
    }
    pthread_mutex_unlock(&saved_lock);
    return place != NULL;
}

OrtStatus *refuse(const OrtApi *api, OrtErrorCode code, const char *format, const char *what) {
    char text[8448];
    snprintf(text, sizeof text, format, what);
    return api->CreateStatus(code, text);
}

static OrtStatus *saved_file(const OrtSession *session, uint32_t which, uint8_t *to, size_t room, size_t *size) {
    ssize_t got = 0;
    pthread_mutex_lock(&saved_lock);
    struct saved *place = session ? saved_of(session, which) : NULL;
    if (place) {
        got = read(place->file, to, room);
        if (got <= 0) {
            close(place->file);
            *place = (struct saved){0};
        }
    }
    pthread_mutex_unlock(&saved_lock);
    *size = got > 0 ? (size_t)got : 0;
    /* A model that has only small weights has no file for them. */
    if (got >= 0 && (place || which == WEIGHTS_FILE))
        return NULL;
    return refuse(vendor_api(), ORT_FAIL, "%s", "the file is not there");
}

void *saved_file_function(void) {
    return (void *)(uintptr_t)saved_file;
}

static OrtStatus *profile_ending(const OrtSession *session, char *to, size_t room) {
    pthread_mutex_lock(&saved_lock);
    const struct saved *place = session ? saved_of(session, PROFILE_FILE) : NULL;
    snprintf(to, room, "%s", place ? place->ending : "");
    pthread_mutex_unlock(&saved_lock);
    return NULL;
}

void *profile_ending_function(void) {
    return (void *)(uintptr_t)profile_ending;
}

/* The library writes the last of the profile, which the guest then takes. */
static OrtStatus *end_profile(OrtSession *session) {
    const OrtApi *api = vendor_api();
    OrtAllocator *allocator = (OrtAllocator *)(uintptr_t)default_allocator();
    char *name = NULL;
    OrtStatus *status = api->SessionEndProfiling(session, allocator, &name);
    if (name)
        allocator->Free(allocator, name);
    return status;
}

void *end_profile_function(void) {
    return (void *)(uintptr_t)end_profile;
}

/* Makes the folders of a name in `folder`; 0 if that is not possible. */
static int make_folders(const char *folder, const char *name) {
    char path[sizeof(struct places) + LONGEST_SAVED];
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(path, sizeof path, "%s/%.*s", folder, (int)(slash - name), name);
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return 0;
    }
    return 1;
}

/* Where the weights of an optimized model go, if the options want a file of their own for them. */
static OrtStatus *place_weights(const OrtApi *api, struct places *places, const OrtSessionOptions *options) {
    int has = 0;
    size_t size = sizeof places->weights;
    OrtStatus *status = api->HasSessionConfigEntry(options, OPTIMIZED_WEIGHTS, &has);
    if (!status && has)
        status = api->GetSessionConfigEntry(options, OPTIMIZED_WEIGHTS, places->weights, &size);
    if (status || !has)
        return status;
    if (!is_below(places->weights))
        return refuse(api, ORT_FAIL, "the weights of an optimized model go into the model's folder, not to %s", places->weights);
    if (!make_folders(places->folder, places->weights))
        return refuse(api, ORT_FAIL, "the optimized model cannot be saved: %s", strerror(errno));
    return NULL;
}

OrtStatus *place_saved(const OrtApi *api, struct places *places, OrtSessionOptions *options, uint32_t saves) {
    char path[sizeof(struct places) + 16];
    OrtStatus *status = NULL;
    strcpy(places->folder, "/tmp/aviary-saved-XXXXXX");
    if (!mkdtemp(places->folder)) {
        *places->folder = 0;
        return refuse(api, ORT_FAIL, "files of a session cannot be saved: %s", strerror(errno));
    }
    if (saves & SAVES_MODEL) {
        /* The library tells by the name in which format it saves. */
        snprintf(path, sizeof path, "%s/model.%s", places->folder, saves & SAVES_ORT_FORMAT ? "ort" : "onnx");
        status = api->SetOptimizedModelFilePath(options, path);
        if (!status)
            status = place_weights(api, places, options);
    }
    snprintf(path, sizeof path, "%s/profile", places->folder);
    if (!status && saves & SAVES_PROFILE)
        status = api->EnableProfiling(options, path);
    return status;
}

/* Opens the file and keeps it, if it is there; 0 if there is no room. */
static int keep_file(const struct places *places, const char *name, const OrtSession *session, uint32_t which, const char *ending) {
    char path[sizeof(struct places) + 256];
    snprintf(path, sizeof path, "%s/%s", places->folder, name);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return 1;
    if (keep(session, which, file, ending))
        return 1;
    close(file);
    return 0;
}

static int keep_files(const struct places *places, const OrtSession *session) {
    DIR *folder = opendir(places->folder);
    int fine = folder != NULL;
    for (const struct dirent *entry; fine && (entry = readdir(folder));) {
        if (!strncmp(entry->d_name, "model.", 6))
            fine = keep_file(places, entry->d_name, session, MODEL_FILE, "");
        else if (!strncmp(entry->d_name, "profile", 7))
            fine = keep_file(places, entry->d_name, session, PROFILE_FILE, entry->d_name + 7);
    }
    if (folder)
        closedir(folder);
    return fine && (!*places->weights || keep_file(places, places->weights, session, WEIGHTS_FILE, ""));
}

/* Removes the folder and all in it: it has what was made here, and folders of one name. */
static void remove_folder(const char *path, unsigned depth) {
    char inner[LONGEST_SAVED + 320];
    DIR *folder = depth < 64 ? opendir(path) : NULL;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if ((size_t)snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) < sizeof inner && unlink(inner) != 0)
            remove_folder(inner, depth + 1);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

OrtStatus *keep_saved(const OrtApi *api, const struct places *places, OrtStatus *status, OrtSession **out) {
    if (!*places->folder)
        return status;
    if (!status && !keep_files(places, *out)) {
        api->ReleaseSession(*out);
        *out = NULL;
        status = refuse(api, ORT_FAIL, "%s", "too many files of sessions that nobody has taken");
    }
    remove_folder(places->folder, 0);
    return status;
}
