/* Unified shared memory under a limit of so many bytes of device memory: exact for each kind, and whole again after each free.
 *   usm_quota LIMIT */
#include "usm.h"

static struct device d;

static void *allocate(int kind, size_t size) {
    cl_int status = 99;
    void *memory = kind == 0   ? clHostMemAllocINTEL_(d.context, NULL, size, 0, &status)
                   : kind == 1 ? clDeviceMemAllocINTEL_(d.context, d.device, NULL, size, 0, &status)
                               : clSharedMemAllocINTEL_(d.context, d.device, NULL, size, 0, &status);
    if ((memory != NULL) != (status == CL_SUCCESS)) {
        printf("kind %d: memory %d, status %d\n", kind, memory != NULL, status);
        exit(1);
    }
    return memory;
}

int main(int argc, char **argv) {
    size_t limit = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    d = open_usm_device(0);
    for (int round = 0; round < 3; round++)
        for (int kind = 0; kind < 3; kind++) {
            if (allocate(kind, limit + 1))
                return printf("kind %d: more than the limit\n", kind), 1;
            void *most = allocate(kind, limit - 1), *rest = allocate((kind + 1) % 3, 1);
            if (!most || !rest || allocate(kind, 1))
                return printf("kind %d: not exact\n", kind), 1;
            MUST(clMemBlockingFreeINTEL_(d.context, most));
            MUST(clMemFreeINTEL_(d.context, rest));
        }
    close_device(&d);
    printf("exact\n");
    return 0;
}
