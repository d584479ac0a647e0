/* Profiles of sessions: the application's files, which have the names that the library would give them. */
#include <aviary/guest.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "external.h"

/* Bytes that one call brings. */
enum { PIECE = 1 << 20 };

static struct profile *profile_of(const OrtSession *session) {
    return session ? metadata(struct profile, (OrtSession *)(uintptr_t)session) : NULL;
}

int is_profiled(const OrtSession *session) {
    const struct profile *profile = profile_of(session);
    return profile && profile->name;
}

/* Makes the file, as the library does when it makes the session: it is found again from another folder. One that cannot be made is none. */
OrtStatus *begin_profile(OrtSession *session, const char *prefix) {
    char ending[64] = "";
    struct profile *profile = profile_of(session);
    OrtStatus *status = aviary_onnxruntime_profile_ending(session, ending, sizeof ending);
    ending[sizeof ending - 1] = 0;
    if (status || !profile)
        return status;
    const size_t bytes = strlen(prefix) + sizeof ending;
    profile->name = malloc(bytes);
    if (!profile->name)
        return made_status(0);
    snprintf(profile->name, bytes, "%s%s", prefix, ending);
    int file = open(profile->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0) {
        profile->path = realpath(profile->name, NULL);
        close(file);
    }
    return NULL;
}

/* Ends the profile and writes its file. Like the library's own, one that cannot be written is no error. */
static OrtStatus *write_profile(OrtSession *session, const struct profile *profile) {
    OrtStatus *status = aviary_onnxruntime_end_profile(session);
    uint8_t *piece = malloc(PIECE);
    int file = profile->path ? open(profile->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    size_t size = 1;
    while (!status && piece && size > 0) {
        size = 0;
        status = aviary_onnxruntime_saved_file(session, PROFILE_FILE, piece, PIECE, &size);
        if (!status && file >= 0 && !write_all(file, piece, size))
            break;
    }
    free(piece);
    if (file >= 0)
        close(file);
    return status;
}

OrtStatus *end_profiling(OrtSession *session, OrtAllocator *allocator, char **out) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    struct profile *place = profile_of(session), profile = *place;
    void *name = NULL;
    if (!api)
        return made_status(1);
    /* From here on the session is one without a profile, to the guest as to the library. */
    *place = (struct profile){0};
    OrtStatus *status = write_profile(session, &profile);
    if (!status && out)
        status = api->AllocatorAlloc(allocator, strlen(profile.name) + 1, &name);
    if (name)
        *out = strcpy(name, profile.name);
    free(profile.name);
    free(profile.path);
    return status;
}

/* A session that ends ends its profile. */
void release_profiled(OrtSession *session) {
    const OrtApiBase *base = OrtGetApiBase();
    const OrtApi *api = base ? base->GetApi(ORT_API_VERSION) : NULL;
    OrtStatus *status = end_profiling(session, NULL, NULL);
    if (!api)
        return;
    if (status)
        api->ReleaseStatus(status);
    api->ReleaseSession(session);
}
