/* Properties that the API server may take. */
#include <aviary.h>
#include <string.h>

#include "openvino_types.h"

/* Values that are no texts but addresses of the application, and texts that name files, which would be the API server's. Properties
   can have properties of devices as their value, so values are looked through, too. */
static const char *const refused[] = {
    "OCL_CONTEXT", "OCL_QUEUE", "VA_DEVICE", "MEM_HANDLE", "DEV_OBJECT_HANDLE", "CACHE_ENCRYPTION_CALLBACKS", "CACHE_DIR",
    "WEIGHTS_PATH", "CONFIG_FILE", "MODEL_PTR",
};

static int is_refused(const char *text) {
    for (size_t i = 0; text && i < sizeof refused / sizeof *refused; i++)
        if (strstr(text, refused[i]))
            return 1;
    return 0;
}

/* `OCL_CONTEXT_DEVICE_ID` is a number. */
static int names_device(const char *key) {
    return key && !strcmp(key, "OCL_CONTEXT_DEVICE_ID");
}

/* Keys first: what is no text is not looked at. */
int are_plain(const ov_property_t *properties, size_t count) {
    for (size_t i = 0; properties && i < count; i++)
        if ((is_refused(properties[i].key) && !names_device(properties[i].key)) || !properties[i].key || !properties[i].value)
            return 0;
    for (size_t i = 0; properties && i < count; i++)
        if (is_refused(properties[i].value))
            return 0;
    return 1;
}
