/* Two devices: contexts on both, copies between them, peer access. Skipped where there is one device. */
#include "common.h"

int main(void)
{
    CUcontext first, second;
    CUdeviceptr x, y;
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
