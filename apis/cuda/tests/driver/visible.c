/* CUDA_VISIBLE_DEVICES as a program sets it for itself and for its children: read when the driver is initialized.
 *   visible [LIST...]     these lists, each in a process of its own; `-` for no list. Without any: all that there is to say.
 *   visible show LIST     this one, here */
#include "common.h"

#include <sys/wait.h>
#include <unistd.h>

/* The name of a device depends on its ordinal; its identity is in its UUID's last byte and its place on the bus. */
static void show_device(int ordinal)
{
    CUdevice device, back = -1;
    CUuuid uuid;
    char bus[32];
    int number = -1;

    MUST(cuDeviceGet(&device, ordinal));
    MUST(cuDeviceGetUuid(&uuid, device));
    MUST(cuDeviceGetPCIBusId(bus, sizeof(bus), device));
    MUST(cuDeviceGetByPCIBusId(&back, bus));
    MUST(cuDeviceGetAttribute(&number, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
    CHECK(back == device);
    printf(" %d=%02x(%d)", device, (unsigned char)uuid.bytes[15], number - 0x10);
}

/* Ordinals wherever they cross: allocations know theirs, physical memory and pools go where they are told. */
static void use_device(int ordinal)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp property = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
    };
    CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = property.location};
    size_t granule;
    int found = -1;

    MUST(cuDeviceGet(&device, ordinal));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&memory, 4096));
    MUST(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory));
    CHECK(found == ordinal);
    MUST(cuMemGetAllocationGranularity(&granule, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    MUST(cuMemCreate(&handle, granule, &property, 0));
    memset(&property, 0, sizeof(property));
    MUST(cuMemGetAllocationPropertiesFromHandle(&property, handle));
    CHECK(property.location.id == ordinal);
    MUST(cuMemRelease(handle));
    MUST(cuMemPoolCreate(&pool, &pool_properties));
    MUST(cuMemPoolDestroy(pool));
    MUST(cuMemFree(memory));
    MUST(cuDevicePrimaryCtxRelease(device));
}

static void show(const char *list)
{
    CUresult result;
    int count = -1, peers = 0;

    if (list)
        setenv("CUDA_VISIBLE_DEVICES", list, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
    result = cuInit(0);
    /* Too late. */
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    printf("%s%s%s: %s", list ? "\"" : "", list ? list : "no list", list ? "\"" : "", error_name(result));
    if (result == CUDA_SUCCESS) {
        MUST(cuInit(0));
        MUST(cuDeviceGetCount(&count));
        printf(" %d:", count);
        for (int i = 0; i < count; i++) {
            CUdevice other;
            int reaches = 0;

            show_device(i);
            use_device(i);
            CHECK(i == 0 || (cuDeviceGet(&other, i - 1) == CUDA_SUCCESS && cuDeviceCanAccessPeer(&reaches, i, other) == CUDA_SUCCESS));
            peers += reaches;
        }
        printf(", %d peers, one more: %s", peers, error_name(cuDeviceGet(&count, count)));
    } else {
        printf(", %s", error_name(cuDeviceGetCount(&count)));
    }
    printf("\n");
}

/* As programs start their workers: a process of its own, with the variable in its environment. */
static void in_child(const char *program, const char *list)
{
    int status = 0;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        execl(program, program, "show", list, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        printf("%s: status %d\n", list, status);
}

int main(int argc, char **argv)
{
    /* The reference devices' UUIDs. */
    static const char *const lists[] = {
        "-", "", "0", "2", "3,1", "2,0,3,1", "-1", "1,-1,2", "4", "1,4,2", "1,1", "2,0,2", "none", "0,x,1", "01,2", "0x1,1", "1a", " 1", "+3, 2", ",0",
        "1,", "4294967297", "99999999999", "-0",
        "GPU-41766961-7279-5265-6665-72656e636502", "GPU-41766961-7279-5265-6665-72656e636503,0", "GPU-4176", "GPU-", "0,GPU-4176",
        "GPU-41766961-7279-5265-6665-72656e636501,1", "GPU-77", "GPU-77,1", "41766961-7279-5265-6665-72656e636502",
        "GPU-41766961-7279-5265-6665-72656E636502 and more,1", "gpu-41766961-7279-5265-6665-72656e636502",
    };

    if (getenv("AS_IT_IS")) {
        show(getenv("CUDA_VISIBLE_DEVICES"));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "show") == 0) {
        show(strcmp(argv[2], "-") == 0 ? NULL : argv[2]);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        in_child(argv[0], argv[i]);
    for (size_t i = 0; argc == 1 && i < sizeof(lists) / sizeof(lists[0]); i++)
        in_child(argv[0], lists[i]);
    return 0;
}
