// How long single calls take: one `name value unit` line each. Medians of blocks, so that a busy machine shows less.
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call) check((int)(call), #call, __LINE__)
static void check(int status, const char *call, int line) {
    if (status) {
        printf("line %d: %s: %d\n", line, call, status);
        exit(1);
    }
}

__global__ void nothing(int) {}

// Runs for so many nanoseconds of the device's clock.
__global__ void busy(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Call> static double each(int calls, int blocks, Call call, void (*settle)() = nullptr) {
    std::vector<double> times;
    for (int b = 0; b < blocks; b++) {
        if (settle)
            settle();
        double begin = now();
        for (int i = 0; i < calls; i++)
            call();
        times.push_back((now() - begin) / calls);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static void settle() { CHECK(cudaDeviceSynchronize()); }

static void microseconds(const char *name, double seconds) {
    printf("%s %.3f us\n", name, seconds * 1e6);
    fflush(stdout);
}

static void bandwidth(const char *name, size_t bytes, double seconds) {
    printf("%s_%zuK %.2f GB/s\n", name, bytes >> 10, bytes / seconds / 1e9);
    fflush(stdout);
}

int main() {
    int *device, attribute, word = 0;
    cudaEvent_t event;
    CUcontext context;
    CUdevice ordinal;
    CHECK(cudaMalloc(&device, 256 << 20));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    nothing<<<1, 1>>>(0);
    CHECK(cudaDeviceSynchronize());
    microseconds("launch_issue", each(500, 41, [] { nothing<<<1, 1>>>(0); }, settle));
    // So few that nobody waits for the device, or for room.
    microseconds("launch_issue_16", each(16, 201, [] { nothing<<<1, 1>>>(0); }, settle));
    microseconds("synchronize_idle", each(500, 41, [] { cudaDeviceSynchronize(); }));
    microseconds("launch_sync", each(200, 41, [] { nothing<<<1, 1>>>(0); cudaDeviceSynchronize(); }));
    // Too long to spin: a waiting thread sleeps, and has to be woken.
    microseconds("kernel_2ms_sync", each(1, 41, [] { busy<<<1, 1>>>(2000000); cudaDeviceSynchronize(); }));
    microseconds("kernel_10ms_sync", each(1, 21, [] { busy<<<1, 1>>>(10000000); cudaDeviceSynchronize(); }));
    microseconds("event_record", each(500, 41, [&] { cudaEventRecord(event); }, settle));
    CHECK(cudaDeviceSynchronize());
    microseconds("event_query", each(1000, 41, [&] { cudaEventQuery(event); }));
    microseconds("stream_query", each(1000, 41, [&] { cudaStreamQuery(0); }));
    microseconds("context_get_current", each(10000, 21, [&] { cuCtxGetCurrent(&context); }));
    CHECK(cuCtxGetDevice(&ordinal));
    microseconds("device_attribute",
                 each(10000, 21, [&] { cuDeviceGetAttribute(&attribute, CU_DEVICE_ATTRIBUTE_WARP_SIZE, ordinal); }));
    microseconds("event_create_destroy", each(200, 21, [] { cudaEvent_t e; cudaEventCreate(&e); cudaEventDestroy(e); }));
    microseconds("copy_4_in", each(200, 41, [&] { cudaMemcpy(device, &word, 4, cudaMemcpyHostToDevice); }));
    microseconds("copy_4_out", each(200, 41, [&] { cudaMemcpy(&word, device, 4, cudaMemcpyDeviceToHost); }));
    microseconds("malloc_free_1M", each(20, 21, [] { void *p; cudaMalloc(&p, 1 << 20); cudaFree(p); }));
    // In a stream's order; what is freed is allocated again before the stream has got there.
    microseconds("malloc_free_async_1M", each(200, 21, [] { void *p; cudaMallocAsync(&p, 1 << 20, 0); cudaFreeAsync(p, 0); }, settle));
    char *pinned, *pageable = (char *)malloc(256 << 20);
    CHECK(cudaMallocHost(&pinned, 256 << 20));
    memset(pinned, 1, 256 << 20);
    memset(pageable, 1, 256 << 20);
    for (size_t bytes : {64ul << 10, 1ul << 20, 16ul << 20, 256ul << 20}) {
        int calls = (int)std::max<size_t>(1, (64ul << 20) / bytes), blocks = 9;
        auto in = [&](char *host) { return each(calls, blocks, [&] { cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice); }); };
        auto out = [&](char *host) { return each(calls, blocks, [&] { cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost); }); };
        bandwidth("pinned_in", bytes, in(pinned));
        bandwidth("pinned_out", bytes, out(pinned));
        bandwidth("pageable_in", bytes, in(pageable));
        bandwidth("pageable_out", bytes, out(pageable));
    }
    return 0;
}
