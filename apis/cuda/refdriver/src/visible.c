/* CUDA_VISIBLE_DEVICES: which devices there are for this process, and in which order. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver.h"

/* As NVIDIA's driver reads it (seen with 580): an entry is the beginning of a UUID that fits one device, or a number, which
 * something else may follow. -1: it names no device. */
static int named(const char *entry, int there)
{
    size_t length = strcspn(entry, ",");
    char *end, text[UUID_TEXT];
    int found = -1;

    if (strncmp(entry, "GPU-", 4) != 0) {
        int number = (int)strtol(entry, &end, 10);

        return end != entry && number >= 0 && number < there ? number : -1;
    }
    for (int i = 0; i < there && length > 4; i++) {
        device_uuid_text(i, text);
        if (strncasecmp(text, entry, length < UUID_TEXT ? length : UUID_TEXT - 1) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

CUresult visible_devices(int there, int numbers[DEVICE_MAXIMUM], int *count)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    bool seen[DEVICE_MAXIMUM] = {false};

    *count = 0;
    for (int i = 0; !list && i < there; i++)
        numbers[(*count)++] = i;
    /* The first entry that names none ends the list. */
    for (const char *entry = list; entry; entry = strchr(entry, ',') ? strchr(entry, ',') + 1 : NULL) {
        int number = named(entry, there);

        if (number < 0)
            break;
        if (seen[number])
            return CUDA_ERROR_INVALID_DEVICE;
        seen[number] = true;
        numbers[(*count)++] = number;
    }
    return *count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
