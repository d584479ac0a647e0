/* Results that NVRTC compiled before: the driver keeps them for programs that compile the same again and again (cuDNN builds an
 * attention kernel for each length of a sequence), by a table of functions of its own. Here it is bytes_kept in the memory of
 * the process, within a bound; nothing goes to a disk. */
#include "guest/compile_cache.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024, MOST_BYTES_KEPT = 128 << 20 };

/* The key of a result: the kind of result that is wanted, the source and the options. `result` NULL: not there yet. */
struct compilation {
    uint64_t hash;
    uint32_t kind;
    size_t source_bytes;
    char *source;
    char *options;
    void *result;
    size_t result_bytes;
    struct compilation *next;
};

static struct compilation *compilations[BUCKETS];
static size_t bytes_kept;
static pthread_mutex_t compilations_lock = PTHREAD_MUTEX_INITIALIZER;

/* Sources come with all their headers, at every token of a model that cuDNN serves: eight bytes at a time. */
static uint64_t compilation_hash(const struct compilation *key)
{
    uint64_t hash = 14695981039346656037ull ^ key->kind, word;
    size_t i = 0;

    for (; key->source_bytes - i >= sizeof(word); i += sizeof(word)) {
        memcpy(&word, key->source + i, sizeof(word));
        hash = (hash ^ word) * 1099511628211ull;
        hash ^= hash >> 32;
    }
    for (; i < key->source_bytes; i++)
        hash = (hash ^ (unsigned char)key->source[i]) * 1099511628211ull;
    for (const char *c = key->options; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    return hash;
}

static int same_compilation(const struct compilation *a, const struct compilation *b)
{
    return a->hash == b->hash && a->kind == b->kind && a->source_bytes == b->source_bytes
           && memcmp(a->source, b->source, a->source_bytes) == 0 && strcmp(a->options, b->options) == 0;
}

static void free_compilation(struct compilation *entry)
{
    free(entry->source);
    free(entry->options);
    free(entry->result);
    free(entry);
}

/* With the lock. A program that fills the cache begins anew: what it still uses comes back with the next compilation. */
static void begin_anew(void)
{
    for (size_t i = 0; i < BUCKETS; i++)
        while (compilations[i]) {
            struct compilation *entry = compilations[i];
            compilations[i] = entry->next;
            free_compilation(entry);
        }
    bytes_kept = 0;
}

CUresult compile_cache_open(void **key, uint32_t kind, const void *source, size_t bytes, const char *options)
{
    struct compilation *entry;

    if (!key || (bytes && !source))
        return CUDA_ERROR_INVALID_VALUE;
    entry = calloc(1, sizeof(*entry));
    if (entry) {
        entry->kind = kind;
        entry->source = malloc(bytes ? bytes : 1);
        entry->options = strdup(options ? options : "");
    }
    if (!entry || !entry->source || !entry->options) {
        if (entry)
            free_compilation(entry);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(entry->source, source, bytes);
    entry->source_bytes = bytes;
    entry->hash = compilation_hash(entry);
    *key = entry;
    return CUDA_SUCCESS;
}

CUresult compile_cache_close(void *key)
{
    if (key)
        free_compilation(key);
    return CUDA_SUCCESS;
}

/* The result is a copy of the caller's, to be given to `compile_cache_free`. */
CUresult compile_cache_find(const void *key, uint64_t unused, void **result, uint32_t *bytes)
{
    const struct compilation *wanted = key;
    CUresult status = CUDA_ERROR_NOT_FOUND;

    (void)unused;
    if (!wanted || !result || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&compilations_lock);
    for (const struct compilation *entry = compilations[wanted->hash % BUCKETS]; entry; entry = entry->next)
        if (same_compilation(entry, wanted)) {
            void *copy = malloc(entry->result_bytes ? entry->result_bytes : 1);
            status = copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
            if (copy) {
                memcpy(copy, entry->result, entry->result_bytes);
                *result = copy;
                *bytes = (uint32_t)entry->result_bytes;
            }
            break;
        }
    pthread_mutex_unlock(&compilations_lock);
    return status;
}

CUresult compile_cache_store(const void *key, uint64_t unused, const void *result, size_t bytes)
{
    const struct compilation *wanted = key;
    void *copied_key = NULL;
    struct compilation *entry;
    size_t size;

    (void)unused;
    if (!wanted || !result || bytes > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    size = wanted->source_bytes + bytes;
    if (size > MOST_BYTES_KEPT)
        return CUDA_SUCCESS;
    if (compile_cache_open(&copied_key, wanted->kind, wanted->source, wanted->source_bytes, wanted->options) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    entry = copied_key;
    entry->result = malloc(bytes ? bytes : 1);
    if (!entry->result) {
        free_compilation(entry);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(entry->result, result, bytes);
    entry->result_bytes = bytes;
    pthread_mutex_lock(&compilations_lock);
    if (bytes_kept + size > MOST_BYTES_KEPT)
        begin_anew();
    bytes_kept += size;
    /* One that is there already lies behind and is not found any more. */
    entry->next = compilations[entry->hash % BUCKETS];
    compilations[entry->hash % BUCKETS] = entry;
    pthread_mutex_unlock(&compilations_lock);
    return CUDA_SUCCESS;
}

CUresult compile_cache_free(void *result)
{
    free(result);
    return CUDA_SUCCESS;
}
