// Copies of random data, checked: one `name value unit` line each. Medians of blocks of some 64 MiB.
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
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

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Call> static void measure(const char *kind, const char *way, size_t bytes, Call call) {
    std::vector<double> times;
    int calls = (int)std::max<size_t>(1, (64ul << 20) / bytes);
    for (int block = 0; block < 7; block++) {
        double begin = now();
        for (int i = 0; i < calls; i++)
            call();
        times.push_back((now() - begin) / calls);
    }
    std::sort(times.begin(), times.end());
    printf("%s_%s_%zuM %.3f GB/s\n", kind, way, bytes >> 20, bytes / times[times.size() / 2] / 1e9);
    fflush(stdout);
}

static void fill(uint64_t *words, size_t bytes) {
    static uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < bytes / 8; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        words[i] = state;
    }
}

// `odd` bytes behind each length: no part of a copy has a round one.
static void copies(const char *kind, char *there, char *back, char *device, size_t largest, size_t odd) {
    for (size_t bytes : {1ul << 20, 16ul << 20, 64ul << 20, 1ul << 30}) {
        if (bytes > largest)
            continue;
        fill((uint64_t *)there, bytes + odd);
        memset(back, 0, bytes + odd);
        measure(kind, "in", bytes, [&] { CHECK(cudaMemcpy(device, there, bytes + odd, cudaMemcpyHostToDevice)); });
        measure(kind, "out", bytes, [&] { CHECK(cudaMemcpy(back, device, bytes + odd, cudaMemcpyDeviceToHost)); });
        if (memcmp(there, back, bytes + odd)) {
            printf("%s copies of %zu bytes are wrong\n", kind, bytes + odd);
            exit(1);
        }
    }
}

int main(int argc, char **argv) {
    size_t largest = (argc > 1 ? (size_t)atol(argv[1]) : 1024) << 20, odd = 72;
    char *device, *pinned[2], *ordinary[2];
    CHECK(cudaMalloc(&device, largest + odd));
    for (int i = 0; i < 2; i++) {
        CHECK(cudaMallocHost(&pinned[i], largest + odd));
        ordinary[i] = (char *)malloc(largest + odd);
    }
    copies("pinned", pinned[0], pinned[1], device, largest, odd);
    copies("pageable", ordinary[0], ordinary[1], device, largest, odd);
    return 0;
}
