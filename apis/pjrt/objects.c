/* Objects that programs of version 105 and later read: the first word of a memory and of an error is the address of a table
   of functions. The guest's handles of these types begin with the address of one of these two. */
#include "pjrt_types.h"
#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* --- errors: the functions of PJRT_Api by another way */

static void destroy(PJRT_Error *error) {
    PJRT_Error_Destroy_Args args = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    GetPjrtApi()->PJRT_Error_Destroy(&args);
}
static void message(const PJRT_Error *error, const char **text, size_t *size) {
    PJRT_Error_Message_Args args = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
    GetPjrtApi()->PJRT_Error_Message(&args);
    *text = args.message ? args.message : "";
    *size = args.message ? args.message_size : 0;
}
static PJRT_Error_Code code(const PJRT_Error *error) {
    PJRT_Error_GetCode_Args args = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
    PJRT_Error *failed = GetPjrtApi()->PJRT_Error_GetCode(&args);
    if (failed)
        destroy(failed);
    return failed ? PJRT_Error_Code_UNKNOWN : args.code;
}
PJRT_Error *visit_payloads(const PJRT_Error *error, void *visitor, void *user_arg);
static void each_payload(const PJRT_Error *error, void *visitor, void *user_arg) { visit_payloads(error, visitor, user_arg); }
static const PJRT_Error_FunctionTable error_table = {sizeof error_table, sizeof(void *), NULL, destroy, message, code, each_payload};

const void *error_functions(void) { return &error_table; }

/* --- buffers: addresses of memory that nobody can read, another one for each */

enum { SHADOW_BYTES = 1 << 30, SHADOW_STEP = 64 };
PJRT_Error *made(uint32_t number);

PJRT_Error *no_memory(PJRT_Buffer *buffer, void **address) {
    static char *shadow;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!metadata(struct charged, buffer))
        return made(0);
    pthread_mutex_lock(&lock);
    if (!shadow) {
        void *range = mmap(NULL, SHADOW_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        shadow = range == MAP_FAILED ? NULL : range;
    }
    pthread_mutex_unlock(&lock);
    if (!shadow)
        return made(0);
    *address = shadow + (uintptr_t)buffer % (SHADOW_BYTES / SHADOW_STEP) * SHADOW_STEP;
    return NULL;
}

/* --- memories: what the program keeps beside them */

struct kept {
    PJRT_Memory *memory;
    const void *key;
    void *data;
    void (*end)(void *);
    struct kept *next;
};
static struct kept *all_kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static struct kept *find_kept(PJRT_Memory *memory, const void *key) {
    struct kept *kept = all_kept;
    while (kept && (kept->memory != memory || kept->key != key))
        kept = kept->next;
    return kept;
}
static void *user_data(PJRT_Memory *memory, const void *key) {
    pthread_mutex_lock(&kept_lock);
    const struct kept *kept = find_kept(memory, key);
    void *data = kept ? kept->data : NULL;
    pthread_mutex_unlock(&kept_lock);
    return data;
}
/* What was there before ends, outside of the lock: it is code of the program's. */
static void set_user_data(PJRT_Memory *memory, const void *key, void *data, void (*end)(void *)) {
    struct kept before = {0};
    pthread_mutex_lock(&kept_lock);
    struct kept *kept = find_kept(memory, key);
    if (kept)
        before = *kept;
    else if ((kept = calloc(1, sizeof *kept)) != NULL)
        *kept = (struct kept){memory, key, NULL, NULL, all_kept}, all_kept = kept;
    if (kept) {
        kept->data = data;
        kept->end = end;
    }
    pthread_mutex_unlock(&kept_lock);
    if (before.data && before.end)
        before.end(before.data);
}
static const PJRT_Memory_FunctionTable memory_table = {sizeof memory_table, NULL, sizeof(void *), user_data, set_user_data};

const void *memory_functions(void) { return &memory_table; }

/* A client has ended, and its memories with it: what the program kept beside them ends, too. */
int end_kept(void) {
    struct kept *ended = NULL, *kept;
    pthread_mutex_lock(&kept_lock);
    for (struct kept **at = &all_kept; (kept = *at) != NULL;) {
        if (metadata(struct living, kept->memory)) {
            at = &kept->next;
            continue;
        }
        *at = kept->next;
        kept->next = ended;
        ended = kept;
    }
    pthread_mutex_unlock(&kept_lock);
    while ((kept = ended) != NULL) {
        ended = kept->next;
        if (kept->data && kept->end)
            kept->end(kept->data);
        free(kept);
    }
    return 0;
}
