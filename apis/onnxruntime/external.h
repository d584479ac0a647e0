/* Files beside a model as they travel: this head, then the files, each with its name and its bytes behind it. */
#ifndef ONNXRUNTIME_EXTERNAL_H
#define ONNXRUNTIME_EXTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "onnxruntime_types.h"

/* The entry of a session's options that names the folder of the files. */
#define EXTERNAL_FOLDER "session.model_external_initializers_file_folder_path"

/* As many bytes has a file that cannot be read; its name is then its path. */
#define NO_FILE UINT64_MAX

struct external_content {
    uint64_t bytes; /* all, with this head */
};

struct external_file {
    uint64_t name_bytes; /* with its NUL */
    uint64_t bytes;
};

#ifdef AVIARY_GUEST
/* guest.c: 0 of a call that was refused, 1 of a lost one, 2 of one that is not virtualized. */
OrtStatus *made_status(uint32_t number);
/* True if the model names files. */
int has_external(const void *model, size_t bytes);
#endif
#ifdef AVIARY_SERVER
/* The vendor's table, OrtApi; NULL if there is none. */
const void *vendor_api(void);
#endif

#endif
