/* Files beside a model as they travel: this head, then the files, each with its name and its bytes behind it. */
#ifndef ONNXRUNTIME_EXTERNAL_H
#define ONNXRUNTIME_EXTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "onnxruntime_types.h"

/* The entry of a session's options that names the folder of the files. */
#define EXTERNAL_FOLDER "session.model_external_initializers_file_folder_path"

/* The entry that names a file of its own for the weights of an optimized model. */
#define OPTIMIZED_WEIGHTS "session.optimized_model_external_initializers_file_name"

/* What the guest wants to have of what the library writes for a session: the optimized model, as .ort if so named; the profile. */
enum { SAVES_MODEL = 1, SAVES_ORT_FORMAT = 2, SAVES_PROFILE = 4 };
/* The files, as the guest asks for them. */
enum saved_file { MODEL_FILE, WEIGHTS_FILE, PROFILE_FILE };

/* As many bytes has a file that cannot be read; its name is then its path. */
#define NO_FILE UINT64_MAX

struct external_content {
    uint64_t bytes; /* all, with this head */
};

struct external_file {
    uint64_t name_bytes; /* with its NUL */
    uint64_t bytes;
};

/* A name leads to nothing outside of the model's folder, as the library asks for. */
static inline int is_below(const char *name) {
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (!strncmp(part, "..", 2) && (part[2] == '/' || !part[2]))
            return 0;
    }
    return *name != '/';
}

#ifdef AVIARY_GUEST
/* guest.c: 0 of a call that was refused, 1 of a lost one, 2 of one that is not virtualized. */
OrtStatus *made_status(uint32_t number);
/* Bytes as they grow. */
struct content {
    uint8_t *at;
    size_t bytes, capacity;
};
uint8_t *more(struct content *content, uint64_t bytes);
int read_all(int file, uint8_t *to, uint64_t bytes);
int folder_of(const OrtSessionOptions *options, char *folder, size_t size);
/* True if the model names files. */
int has_external(const void *model, size_t bytes);
int has_nested_external(const void *model, size_t bytes);
/* nested.c */
OrtStatus *session_of_nested(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, OrtSession **out);
/* optimized.c: whether the application wants files of sessions with such options; what the API server saves of them. */
int wants_files(const OrtSessionOptions *options);
uint32_t saves_of(const OrtSessionOptions *options);
OrtStatus *session_with_files(const OrtEnv *env, const void *model, size_t bytes, const OrtSessionOptions *options, OrtSession **out);
int write_all(int file, const uint8_t *from, size_t bytes);
/* profiles.c */
OrtStatus *begin_profile(OrtSession *session, const char *prefix);
#endif
#ifdef AVIARY_SERVER
/* The vendor's table, OrtApi; NULL if there is none. */
const void *vendor_api(void);
const void *default_allocator(void);
#endif

#endif
