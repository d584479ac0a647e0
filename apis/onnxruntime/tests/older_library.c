/* A libonnxruntime of version 1.17 as far as versions.c calls it: its table ends where memory ends, as nothing says that more of it
 * could be read. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <onnxruntime_c_api.h>

enum { VERSION = 17, SLOTS = offsetof(OrtApi, SessionOptionsAppendExecutionProvider_OpenVINO_V2) / sizeof(void *) + 1 };

static char name[] = "OlderExecutionProvider", *names[] = {name};

static OrtStatusPtr create_env(OrtLoggingLevel level, const char *id, OrtEnv **out) {
    (void)level, (void)id;
    *out = (OrtEnv *)(void *)names;
    return NULL;
}

static void release_env(OrtEnv *environment) {
    (void)environment;
}

static OrtStatusPtr providers(char ***out, int *count) {
    *out = names;
    *count = 1;
    return NULL;
}

static OrtStatusPtr release_providers(char **list, int count) {
    (void)list, (void)count;
    return NULL;
}

/* The table, at the end of the last page that can be read; NULL if there is no memory. */
static const OrtApi *make_table(void) {
    static const OrtApi functions = {
        .CreateEnv = create_env,
        .ReleaseEnv = release_env,
        .GetAvailableProviders = providers,
        .ReleaseAvailableProviders = release_providers,
    };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = SLOTS * sizeof(void *), pages = (bytes + page - 1) / page;
    char *memory = mmap(NULL, (pages + 1) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + pages * page, page, PROT_NONE) != 0)
        return NULL;
    char *table = memory + pages * page - bytes;
    memcpy(table, &functions, bytes);
    return (const OrtApi *)(void *)table;
}

static const OrtApi *get_api(uint32_t version) {
    static const OrtApi *table;
    if (!table)
        table = make_table();
    return version >= 1 && version <= VERSION ? table : NULL;
}

static const char *get_version(void) {
    return "1.17.3";
}

const OrtApiBase *OrtGetApiBase(void) {
    static const OrtApiBase base = {get_api, get_version};
    return &base;
}
