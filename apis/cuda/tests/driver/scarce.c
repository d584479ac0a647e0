/* All of a device's memory, allocated in pieces until it is out, and returned. Meant for a small device. */
#include "common.h"

enum { PIECE = 4 << 20, MOST = 4096 };

int main(void)
{
    static CUdeviceptr pieces[MOST];
    CUcontext context = start();
    size_t before, after, total;
    CUresult result = CUDA_SUCCESS;
    int count;

    MUST(cuMemGetInfo(&before, &total));
    if (before > (size_t)MOST * PIECE) {
        puts("skipped: a large device");
        return 0;
    }
    for (int round = 0; round < 3; round++) {
        for (count = 0; count < MOST && (result = cuMemAlloc(&pieces[count], PIECE)) == CUDA_SUCCESS; count++)
            MUST(cuMemsetD8Async(pieces[count], 1, PIECE, NULL));
        MUST(cuMemGetInfo(&after, &total));
        printf("%s, less than a piece is left: %d, pieces as many as fit: %d\n", error_name(result), after < PIECE,
               (size_t)count == before / PIECE);
        /* In another order than they came. */
        for (int i = 0; i < count; i += 2)
            MUST(cuMemFree(pieces[i]));
        for (int i = 1; i < count; i += 2)
            MUST(cuMemFree(pieces[i]));
    }
    MUST(cuMemGetInfo(&after, &total));
    printf("all back: %d\n", before == after);
    MUST(cuCtxDestroy(context));
    puts("ok scarce");
    return 0;
}
