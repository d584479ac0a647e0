/* Makes and ends contexts as the lines of its input say, and answers each with one line: what the driver answers, of `info` the MiB
 * that are free and that there are. `N retain` does so in N threads at once. */
#include "../driver/common.h"

#include <pthread.h>

enum { MOST = 8, MIB = 1 << 20 };

static CUcontext made[MOST];
static CUgreenCtx green;
static CUdeviceptr memory;
static int count;
static pthread_barrier_t together;

static CUresult make_green(void)
{
    CUdevResource all;
    CUdevResourceDesc description;

    MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &all, 1));
    return cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

static CUresult allocate(void)
{
    CUcontext primary;
    CUresult result = cuDevicePrimaryCtxRetain(&primary, 0);

    if (result != CUDA_SUCCESS)
        return result;
    MUST(cuCtxPushCurrent(primary));
    result = cuMemAlloc(&memory, 32 * MIB);
    MUST(cuCtxPopCurrent(&primary));
    MUST(cuDevicePrimaryCtxRelease(0));
    return result;
}

static CUresult info(void)
{
    CUcontext primary;
    size_t available, total;

    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxPushCurrent(primary));
    MUST(cuMemGetInfo(&available, &total));
    MUST(cuCtxPopCurrent(&primary));
    MUST(cuDevicePrimaryCtxRelease(0));
    printf("%zu of %zu, ", available / MIB, total / MIB);
    return CUDA_SUCCESS;
}

static void *retain(void *result)
{
    CUcontext primary;

    pthread_barrier_wait(&together);
    *(CUresult *)result = cuDevicePrimaryCtxRetain(&primary, 0);
    return NULL;
}

static CUresult retain_at_once(int threads)
{
    pthread_t thread[MOST];
    CUresult results[MOST];

    pthread_barrier_init(&together, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&thread[i], NULL, retain, &results[i]) == 0);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < threads; i++)
        if (results[i] != CUDA_SUCCESS)
            return results[i];
    return CUDA_SUCCESS;
}

static CUresult done(const char *word)
{
    CUresult result;

    if (word[0] > '0' && word[0] <= '0' + MOST)
        return retain_at_once(word[0] - '0');
    if (strcmp(word, "release") == 0)
        return cuDevicePrimaryCtxRelease(0);
    if (strcmp(word, "reset") == 0)
        return cuDevicePrimaryCtxReset(0);
    if (strcmp(word, "create") == 0) {
        CHECK(count < MOST);
        result = cuCtxCreate(&made[count], NULL, 0, 0);
        count += result == CUDA_SUCCESS;
        return result;
    }
    if (strcmp(word, "destroy") == 0) {
        CHECK(count > 0);
        return cuCtxDestroy(made[--count]);
    }
    if (strcmp(word, "green") == 0)
        return make_green();
    if (strcmp(word, "end green") == 0)
        return cuGreenCtxDestroy(green);
    if (strcmp(word, "allocate") == 0)
        return allocate();
    CHECK(strcmp(word, "info") == 0);
    return info();
}

int main(void)
{
    char line[64];

    MUST(cuInit(0));
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        puts(error_name(done(line)));
    }
    return 0;
}
