/* Two devices: contexts on both, copies between them, peer access. Skipped where there is one device. */
#include "common.h"
#include "kernels.h"

/* A kernel of the current device adds what lies on the other one. */
static void reach(CUdeviceptr a, CUdeviceptr b)
{
    enum { COUNT = 1000 };
    static float sums[COUNT];
    CUdeviceptr result;
    CUmodule module;
    CUfunction function;
    int count = COUNT;
    void *parameters[] = {&a, &b, &result, &count};

    MUST(cuMemAlloc(&result, sizeof(sums)));
    MUST(cuModuleLoadData(&module, vector_add));
    MUST(cuModuleGetFunction(&function, module, "vector_add"));
    MUST(cuMemsetD32(a, 0x3f800000, COUNT));
    MUST(cuMemsetD32(b, 0x40000000, COUNT));
    MUST(cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(sums, result, sizeof(sums)));
    CHECK(sums[0] == 3 && sums[COUNT - 1] == 3);
    MUST(cuModuleUnload(module));
    MUST(cuMemFree(result));
    puts("the other device's memory is reached");
}

int main(void)
{
    CUcontext first, second;
    CUdeviceptr x, y, later;
    unsigned char in[5000], out[5000];
    int count, possible, value;
    char id[32];
    CUdevice device;

    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&count));
    if (count < 2) {
        puts("skipped: one device");
        return 0;
    }
    MUST(cuCtxCreate(&first, NULL, 0, 0));
    MUST(cuMemAlloc(&x, sizeof(in)));
    MUST(cuCtxCreate(&second, NULL, 0, 1));
    MUST(cuMemAlloc(&y, sizeof(in)));
    MUST(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, y));
    printf("y is on device %d\n", value);
    MUST(cuDeviceCanAccessPeer(&possible, 0, 1));
    printf("peers: %d\n", possible);
    fill_bytes(in, sizeof(in), 4);
    MUST(cuMemcpyHtoD(y, in, sizeof(in)));
    MUST(cuMemcpyPeer(x, first, y, second, sizeof(in)));
    MUST(cuCtxSetCurrent(first));
    MUST(cuMemcpyDtoH(out, x, sizeof(out)));
    CHECK(memcmp(in, out, sizeof(in)) == 0);
    MUST(cuMemsetD8(x, 7, sizeof(in)));
    MUST(cuMemcpyPeerAsync(y, second, x, first, sizeof(in), NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(out, y, sizeof(out)));
    CHECK(out[0] == 7 && out[sizeof(out) - 1] == 7);
    MUST(cuCtxEnablePeerAccess(second, 0));
    TELL(cuCtxEnablePeerAccess(second, 0));
    /* Also what is allocated afterwards, large or small. */
    MUST(cuCtxSetCurrent(second));
    MUST(cuMemAlloc(&later, 8 << 20));
    MUST(cuCtxSetCurrent(first));
    reach(y, later);
    MUST(cuMemFree(later));
    MUST(cuCtxDisablePeerAccess(second));
    TELL(cuCtxDisablePeerAccess(second));
    MUST(cuDeviceGetPCIBusId(id, sizeof(id), 1));
    MUST(cuDeviceGetByPCIBusId(&device, id));
    printf("device %d by its bus\n", device);
    MUST(cuCtxDestroy(second));
    MUST(cuCtxDestroy(first));
    puts("ok peers");
    return 0;
}
