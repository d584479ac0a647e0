/* Files that the library writes for a session, in the API server. */
#ifndef ONNXRUNTIME_SAVED_H
#define ONNXRUNTIME_SAVED_H

#include <stdint.h>

#include "external.h"

enum { LONGEST_SAVED = 4096 };

/* Where the library writes; nowhere: the folder has no name. */
struct places {
    char folder[32];
    /* The file for weights of the optimized model, in the folder; none: no name. */
    char weights[LONGEST_SAVED];
};

OrtStatus *refuse(const OrtApi *api, OrtErrorCode code, const char *format, const char *what);
/* Makes the folder, and has the options name it. */
OrtStatus *place_saved(const OrtApi *api, struct places *places, OrtSessionOptions *options, uint32_t saves);
/* Keeps what was written for a session that was made, and removes the folder. */
OrtStatus *keep_saved(const OrtApi *api, const struct places *places, OrtStatus *status, OrtSession **out);

#endif
