// One of several programs on a device. `copy in|out pinned|pageable`: copies 1 GiB again and again until it is killed.
// `steady`: computes, checks each result and ends when its standard input does; says how many rounds there were, how
// many were wrong, and how long the slowest took.
#include <cuda_runtime.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(call) check((call), #call, __LINE__)
static void check(cudaError_t status, const char *call, int line) {
    if (status == cudaSuccess)
        return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorName(status));
    exit(1);
}

__global__ void next(unsigned *data, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i] = data[i] * 1664525u + 1013904223u + i;
}

static void copy_for_ever(bool in, bool pinned) {
    size_t bytes = (size_t)1 << 30;
    void *device, *host;
    CHECK(cudaMalloc(&device, bytes));
    if (pinned)
        CHECK(cudaMallocHost(&host, bytes));
    else
        host = malloc(bytes);
    memset(host, 1, bytes);
    for (bool told = false;; told = true) {
        if (!told) {
            printf("copying %d\n", (int)getpid());
            fflush(stdout);
        }
        if (in)
            CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
        else
            CHECK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    }
}

static void steadily() {
    enum { N = 1 << 16 };
    static unsigned expected[N], found[N];
    unsigned *device;
    long rounds = 0, wrong = 0;
    double slowest = 0;
    CHECK(cudaMalloc(&device, sizeof found));
    CHECK(cudaMemset(device, 0, sizeof found));
    puts("steady");
    fflush(stdout);
    for (pollfd input = {0, POLLIN, 0}; poll(&input, 1, 0) == 0; rounds++) {
        auto begin = std::chrono::steady_clock::now();
        next<<<N / 256, 256>>>(device, N);
        CHECK(cudaMemcpy(found, device, sizeof found, cudaMemcpyDeviceToHost));
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        slowest = rounds ? std::max(slowest, took.count()) : 0;
        for (int i = 0; i < N; i++)
            expected[i] = expected[i] * 1664525u + 1013904223u + i;
        wrong += memcmp(expected, found, sizeof found) != 0;
    }
    printf("%ld rounds, %ld wrong, %.6f s\n", rounds, wrong, slowest);
}

int main(int count, char **words) {
    if (count == 4)
        copy_for_ever(!strcmp(words[2], "in"), !strcmp(words[3], "pinned"));
    else
        steadily();
    return 0;
}
