/* The export tables: sizes, what their functions answer, and the checksum after known vectors. */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../driver/common.h"
#include "guest/message_digest.h"

typedef CUresult (*integrity_function)(uint32_t version, uint64_t seconds, uint64_t checksum[2]);

static const unsigned char ids[][16] = {
    {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9},
    {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
    {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
    {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
    {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
    {0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e},
    {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
    {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2},
    {0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca},
    {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e},
    {0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28},
};
enum { CUDART = 1, HOOKS, TLS, STORAGE, CHECKS, INTEGRITY, TOOLS, CLUSTERS, MODULE, COMPILED };

static void *const *table(int which)
{
    const void *found = NULL;
    CUuuid id;

    memcpy(id.bytes, ids[which], sizeof(ids[which]));
    return cuGetExportTable(&found, &id) == CUDA_SUCCESS ? found : NULL;
}

static void digests(void)
{
    /* RFC 1319, A.5. */
    static const char *const texts[] = {
        "", "a", "abc", "message digest", "abcdefghijklmnopqrstuvwxyz",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
        "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
    };
    static const char *const sums[] = {
        "8350e5a3e24c153df2275c9f80692773", "32ec01ec4a6dac72c0ab96fb34c0b5d1", "da853b0d3f88d99b30283a69e6ded6bb",
        "ab4f496bfb2a530b219ff33031fe06b0", "4e8ddff3650292ab5a4108c3aa47940b", "da33def2a42df13975352846c30338cd",
        "d5976f79d83d3a0dc9806c3c66f3efd8",
    };

    for (int i = 0; i < 7; i++) {
        uint8_t digest[DIGEST_SIZE];
        char text[2 * DIGEST_SIZE + 1];
        digest_md2((const uint8_t *)texts[i], strlen(texts[i]), digest);
        for (int j = 0; j < DIGEST_SIZE; j++)
            sprintf(text + 2 * j, "%02x", digest[j]);
        CHECK(strcmp(text, sums[i]) == 0);
    }
    puts("digests: as published");
}

static int destroyed;
static void destructor(CUcontext context, void *key, void *value)
{
    (void)context;
    destroyed += key == (void *)1 ? *(int *)value : 1000;
}

static void storage(CUcontext context)
{
    CUresult (*put)(CUcontext, void *, void *, void (*)(CUcontext, void *, void *)) = (void *)table(STORAGE)[0];
    CUresult (*delete)(CUcontext, void *) = (void *)table(STORAGE)[1];
    CUresult (*get)(void **, CUcontext, void *) = (void *)table(STORAGE)[2];
    static int three = 3, four = 4;
    void *value;

    printf("absent: %d\n", get(&value, context, (void *)1));
    MUST(put(context, (void *)1, &four, destructor));
    MUST(put(context, (void *)1, &three, destructor));
    MUST(put(NULL, (void *)2, &four, destructor));
    MUST(get(&value, context, (void *)1));
    CHECK(value == &three);
    MUST(get(&value, context, (void *)2));
    MUST(delete(context, (void *)2));
    printf("deleted: %d %d\n", get(&value, context, (void *)2), delete(context, (void *)2));
}

static void *other_thread(void *argument)
{
    MUST(((integrity_function)table(INTEGRITY)[1])(13002, 1700000000, argument));
    return NULL;
}

static void integrity(void)
{
    integrity_function check = (integrity_function)table(INTEGRITY)[1];
    uint64_t first[2], again[2], other[2];
    pthread_t thread;
    int status;
    pid_t child;

    MUST(check(13010, 0, first));
    CHECK(first[0] == 0x3341181C03CB675C && first[1] == 0x8ED383AA1F4CD1E8);
    MUST(check(13001, 0, first));
    CHECK(first[0] == 0x1841181C03CB675C && first[1] == 0x8ED383AA1F4CD1E8);
    MUST(check(13002, 1700000000, first));
    MUST(check(13002, 1700000000, again));
    MUST(check(13002, 1700000001, other));
    printf("the same: %d, another second: %d\n", memcmp(first, again, 16) == 0, memcmp(first, other, 16) == 0);
    CHECK(pthread_create(&thread, NULL, other_thread, other) == 0);
    pthread_join(thread, NULL);
    printf("another thread: %d\n", memcmp(first, other, 16) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        /* A library may refuse to work in a child; it must not answer for the parent. */
        _exit(check(13002, 1700000000, other) != CUDA_SUCCESS || memcmp(first, other, 16) != 0 ? 7 : 8);
    CHECK(waitpid(child, &status, 0) == child);
    printf("another process differs, or is refused: %d\n", WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/* Results of NVRTC are found again by source and options, and only so. */
static void compiled(void)
{
    void *const *cache = table(COMPILED);
    CUresult (*open)(void **, uint32_t, const void *, size_t, const char *) = cache[1];
    CUresult (*close)(void *) = cache[2];
    CUresult (*find)(const void *, uint64_t, void **, uint32_t *) = cache[3];
    CUresult (*store)(const void *, uint64_t, const void *, size_t) = cache[4];
    CUresult (*release)(void *) = cache[6];
    void *key = NULL, *other = NULL, *found = NULL;
    uint32_t bytes = 0;

    MUST(open(&key, 1, "source", 6, "-O2"));
    MUST(open(&other, 1, "source", 6, "-O3"));
    TELL(find(key, 0, &found, &bytes));
    MUST(store(key, 0, "result", 7));
    MUST(close(key));
    MUST(open(&key, 1, "source", 6, "-O2"));
    MUST(find(key, 0, &found, &bytes));
    printf("compiled before: %s, %u bytes\n", (char *)found, bytes);
    MUST(release(found));
    TELL(find(other, 0, &found, &bytes));
    MUST(close(key));
    MUST(close(other));
}

int main(void)
{
    CUcontext context, answered, primary;
    uint8_t *place, *group;
    unsigned long long id;
    uint64_t told;
    uint32_t result = 9;
    size_t size;
    void *buffer;

    digests();
    /* The runtime asks before it initializes the driver. */
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        void *const *found = table((int)i);
        printf("table %02x%02x: %zu\n", ids[i][0], ids[i][1], !found ? 0 : i == STORAGE ? 1 : (size_t)found[0]);
    }
    context = start();
    MUST(((CUresult(*)(CUcontext *))table(TLS)[2])(&answered));
    CHECK(answered == context);
    MUST(((CUresult(*)(CUcontext *, CUdevice))table(CUDART)[2])(&answered, 0));
    unsigned flags;
    int active;
    MUST(cuDevicePrimaryCtxGetState(0, &flags, &active));
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    printf("primary: %d, active before it is retained: %d\n", primary == answered, active);
    MUST(cuDevicePrimaryCtxRelease(0));
    MUST(cuCtxGetId(context, &id));
    MUST(((CUresult(*)(CUcontext, uint64_t *))table(TOOLS)[4])(context, &told));
    CHECK(told == id);
    ((void (*)(void **, size_t *))table(HOOKS)[2])(&buffer, &size);
    printf("hooks: %zu", size);
    ((void (*)(void **, size_t *))table(HOOKS)[6])(&buffer, &size);
    printf(" %zu\n", size);
    MUST(((CUresult(*)(CUcontext, uint32_t *, void **))table(CHECKS)[2])(context, &result, &buffer));
    CHECK(result == 0 && buffer == NULL);
    MUST(((CUresult(*)(uint8_t **, uint8_t **))table(CLUSTERS)[4])(&place, &group));
    MUST(((CUresult(*)(uint8_t *, uint8_t *))table(CLUSTERS)[13])(place, group));
    TELL(((CUresult(*)(void))table(CLUSTERS)[5])());
    compiled();
    integrity();
    storage(context);
    MUST(cuCtxDestroy(context));
    printf("destructors: %d\n", destroyed);
    puts("ok export_tables");
    return 0;
}
