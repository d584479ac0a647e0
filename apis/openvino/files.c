/* Files of the application's: models, weights, exported models; and properties behind `...`. */
#include <aviary/guest.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <wchar.h>

#include "openvino_types.h"

struct content {
    char *data;
    size_t bytes;
};

/* All of a file; `data` NULL: it cannot be read. */
static struct content read_file(const char *path) {
    struct content of = {NULL, 0};
    struct stat about;
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (file && !fstat(fileno(file), &about) && S_ISREG(about.st_mode) && (of.data = malloc((size_t)about.st_size + 1)))
        of.bytes = fread(of.data, 1, (size_t)about.st_size, file);
    if (file)
        fclose(file);
    return of;
}

/* Weights of a model in XML are beside it if nothing else is said. */
static struct content read_weights_of(const char *path) {
    char beside[4096];
    const char *dot = strrchr(path, '.');
    if (!dot || strcmp(dot, ".xml") || dot - path > (long)sizeof beside - 5)
        return (struct content){NULL, 0};
    snprintf(beside, sizeof beside, "%.*s.bin", (int)(dot - path), path);
    return read_file(beside);
}

ov_status_e read_model(const ov_core_t *core, const char *path, const char *weights, ov_model_t **to) {
    if (!core || !path || !to)
        return INVALID_C_PARAM;
    struct content model = read_file(path), more = {NULL, 0};
    int is_xml = model.bytes > 0 && memchr(model.data, '<', model.bytes < 64 ? model.bytes : 64) != NULL;
    if (is_xml && weights && weights[0])
        more = read_file(weights);
    else if (is_xml)
        more = read_weights_of(path);
    /* Weights that are named and not there are an error of the library's, as a model is that is not there. */
    int missing = is_xml && weights && weights[0] && !more.data;
    ov_status_e status = aviary_openvino_read(core, missing ? NULL : model.data, missing ? 0 : model.bytes, more.data, more.bytes, to);
    free(model.data);
    free(more.data);
    return status;
}

ov_status_e compile_file(const ov_core_t *core, const char *path, const char *device, size_t count, const ov_property_t *properties,
                         ov_compiled_model_t **to) {
    ov_model_t *model = NULL;
    if (!core || !path || !to)
        return INVALID_C_PARAM;
    ov_status_e status = read_model(core, path, NULL, &model);
    if (status != OK)
        return status;
    status = ov_core_compile_model_props(core, model, device, count, properties, to);
    ov_model_free(model);
    return status;
}

/* Paths of wide characters are UTF-8, whatever the locale. */
static int narrow(const wchar_t *path, char *to, size_t room) {
    size_t n = 0;
    for (; *path; path++) {
        uint32_t c = (uint32_t)*path;
        int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        static const unsigned char first[4] = {0, 0xc0, 0xe0, 0xf0};
        if (c > 0x10ffff || n + 5 > room)
            return 0;
        to[n++] = (char)(first[more] | c >> 6 * more);
        while (more-- > 0)
            to[n++] = (char)(0x80 | (c >> 6 * more & 0x3f));
    }
    to[n] = 0;
    return 1;
}

ov_status_e read_model_wide(const ov_core_t *core, const wchar_t *path, const wchar_t *weights, ov_model_t **to) {
    char name[4096], weights_name[4096] = "";
    if (!core || !path || !to)
        return INVALID_C_PARAM;
    if (!narrow(path, name, sizeof name) || (weights && !narrow(weights, weights_name, sizeof weights_name)))
        return GENERAL_ERROR;
    return read_model(core, name, weights_name, to);
}

ov_status_e compile_file_wide(const ov_core_t *core, const wchar_t *path, const char *device, size_t count,
                              const ov_property_t *properties, ov_compiled_model_t **to) {
    char name[4096];
    if (!core || !path || !to)
        return INVALID_C_PARAM;
    return narrow(path, name, sizeof name) ? compile_file(core, name, device, count, properties, to) : GENERAL_ERROR;
}

ov_status_e export_model(const ov_compiled_model_t *model, const char *path) {
    char *content = NULL;
    size_t bytes = 0;
    if (!model || !path)
        return INVALID_C_PARAM;
    FILE *file = fopen(path, "wb");
    if (!file)
        return GENERAL_ERROR;
    ov_status_e status = aviary_openvino_export(model, &content, &bytes);
    if (status == OK && fwrite(content, 1, bytes, file) != bytes)
        status = GENERAL_ERROR;
    if (fclose(file) && status == OK)
        status = GENERAL_ERROR;
    free(content);
    return status;
}

/* Keys and values behind `...`, by twos: of the calling thread, until the next ones. */
const ov_property_t *pairs(size_t arguments, uint64_t values) {
    static _Thread_local ov_property_t kept[16];
    const char *const *texts = (const char *const *)(uintptr_t)values;
    for (size_t i = 0; texts && i + 1 < arguments && i / 2 < 16; i += 2)
        kept[i / 2] = (ov_property_t){texts[i], texts[i + 1]};
    return arguments ? kept : NULL;
}

ov_status_e set_pair(const ov_core_t *core, const char *device, const char *key, const void *value) {
    ov_property_t one = {key, value};
    return ov_core_set_properties(core, device, 1, &one);
}

ov_status_e set_compiled_pair(const ov_compiled_model_t *model, const char *key, const void *value) {
    ov_property_t one = {key, value};
    return ov_compiled_model_set_properties(model, 1, &one);
}
