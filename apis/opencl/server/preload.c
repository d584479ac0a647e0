/* Loads the runtimes that the host's loader would load at the first call: see aviary_preload in aviary/server.h. */
#include <aviary/server.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the loader does; what it refuses is not there at the first call either. */
static void preload_runtime(const char *library) {
    dlopen(library, RTLD_LAZY | RTLD_LOCAL);
}

/* A file with one line: the name of a library. */
static void preload_icd(const char *path) {
    char line[4096];
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    if (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        if (line[0])
            preload_runtime(line);
    }
    fclose(file);
}

static int ends_in_icd(const char *name) {
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".icd") == 0;
}

void aviary_preload(void) {
    const char *vendors = getenv("OCL_ICD_VENDORS");
    if (!vendors || !*vendors)
        vendors = "/etc/OpenCL/vendors";
    DIR *directory = opendir(vendors);
    if (!directory) {
        if (ends_in_icd(vendors))
            preload_icd(vendors);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[4096];
        int length = snprintf(path, sizeof path, "%s/%s", vendors, entry->d_name);
        if (ends_in_icd(entry->d_name) && length > 0 && (size_t)length < sizeof path)
            preload_icd(path);
    }
    closedir(directory);
}
