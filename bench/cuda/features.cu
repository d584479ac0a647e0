// What CUDA programs do, one line of results for each thing: native and remoted output must be the same.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call) check((call), #call, __LINE__)
static void check(cudaError_t status, const char *call, int line) {
    if (status == cudaSuccess)
        return;
    printf("line %d: %s: %s\n", line, call, cudaGetErrorName(status));
    exit(1);
}

static void check(CUresult status, const char *call, int line) {
    const char *name = "?";
    if (status == CUDA_SUCCESS)
        return;
    cuGetErrorName(status, &name);
    printf("line %d: %s: %s\n", line, call, name);
    exit(1);
}

static uint64_t digest(const void *data, size_t bytes) {
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211ull;
    return hash;
}

__global__ void add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

__global__ void multiply(const float *a, const float *b, float *c, int n) {
    __shared__ float x[16][16], y[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        x[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        y[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++)
            sum += x[threadIdx.y][i] * y[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

__global__ void step(int *data, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i] = data[i] * 3 + by;
}

__global__ void answer(volatile int *question, volatile int *reply) {
    while (*question == 0)
        ;
    *reply = *question + 1;
    __threadfence_system();
}

__global__ void say(int value) { printf("from the device: %d of %d\n", value, (int)blockDim.x); }

__global__ void sum_together(const int *from, int n, int *partial, int *total) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    int index = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x, own = 0;
    for (int i = index; i < n; i += stride)
        own += from[i];
    atomicAdd(&partial[blockIdx.x], own);
    grid.sync();
    if (index == 0)
        for (unsigned b = 0; b < gridDim.x; b++)
            *total += partial[b];
}

__global__ void fetch(cudaTextureObject_t texture, float *to, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        to[y * width + x] = tex2D<float>(texture, x + 0.25f, y + 0.75f);
}

__device__ int table[64];
__constant__ int factor;
__global__ void use_symbols(int *to) { to[threadIdx.x] = table[threadIdx.x] * factor; }

struct Large { int values[500]; };
__global__ void large_parameter(Large large, int *to) {
    int sum = 0;
    for (int i = 0; i < 500; i++)
        sum += large.values[i];
    *to = sum;
}

static std::vector<float> numbers(size_t count, unsigned seed) {
    std::vector<float> all(count);
    for (float &v : all) {
        seed = seed * 1664525u + 1013904223u;
        v = (float)(seed >> 20) / 64.0f;
    }
    return all;
}

static void vectors() {
    const int n = 1000003;
    std::vector<float> a = numbers(n, 1), b = numbers(n, 2), c(n);
    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, n * 4));
    CHECK(cudaMalloc(&db, n * 4));
    CHECK(cudaMalloc(&dc, n * 4));
    CHECK(cudaMemcpy(da, a.data(), n * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b.data(), n * 4, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(c.data(), dc, n * 4, cudaMemcpyDeviceToHost));
    printf("vectors %016lx\n", digest(c.data(), n * 4));
    CHECK(cudaMemcpy(dc, da, n * 4, cudaMemcpyDefault));
    CHECK(cudaMemcpy(c.data(), dc, n * 4, cudaMemcpyDefault));
    printf("unified copy %d\n", memcmp(c.data(), a.data(), n * 4));
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(dc));
}

static void matrices() {
    const int n = 512;
    std::vector<float> a = numbers(n * n, 3), b = numbers(n * n, 4), c(n * n);
    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, n * n * 4));
    CHECK(cudaMalloc(&db, n * n * 4));
    CHECK(cudaMalloc(&dc, n * n * 4));
    CHECK(cudaMemcpy(da, a.data(), n * n * 4, cudaMemcpyDefault));
    CHECK(cudaMemcpy(db, b.data(), n * n * 4, cudaMemcpyDefault));
    multiply<<<dim3(n / 16, n / 16), dim3(16, 16)>>>(da, db, dc, n);
    CHECK(cudaMemcpy(c.data(), dc, n * n * 4, cudaMemcpyDefault));
    printf("matrices %016lx\n", digest(c.data(), n * n * 4));
    cudaFree(da), cudaFree(db), cudaFree(dc);
}

static void streams() {
    const int n = 1 << 20, count = 4;
    int *host, *device;
    cudaStream_t all[count];
    cudaEvent_t done[count], begin, end;
    CHECK(cudaMallocHost(&host, (size_t)n * count * 4));
    CHECK(cudaMalloc(&device, (size_t)n * count * 4));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < n * count; i++)
        host[i] = i;
    CHECK(cudaEventRecord(begin));
    for (int s = 0; s < count; s++) {
        CHECK(s % 2 ? cudaStreamCreate(&all[s]) : cudaStreamCreateWithFlags(&all[s], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&done[s], cudaEventDisableTiming));
        int *part = device + (size_t)s * n;
        CHECK(cudaMemcpyAsync(part, host + (size_t)s * n, n * 4, cudaMemcpyHostToDevice, all[s]));
        if (s)
            CHECK(cudaStreamWaitEvent(all[s], done[s - 1]));
        for (int k = 0; k < 10; k++)
            step<<<n / 256, 256, 0, all[s]>>>(part, n, k);
        CHECK(cudaMemcpyAsync(host + (size_t)s * n, part, n * 4, cudaMemcpyDeviceToHost, all[s]));
        CHECK(cudaEventRecord(done[s], all[s]));
    }
    for (int s = 0; s < count; s++)
        CHECK(cudaStreamSynchronize(all[s]));
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    printf("streams %016lx, time %s, query %s\n", digest(host, (size_t)n * count * 4), milliseconds > 0 ? "good" : "bad",
           cudaGetErrorName(cudaEventQuery(end)));
    for (int s = 0; s < count; s++) {
        CHECK(cudaStreamDestroy(all[s]));
        CHECK(cudaEventDestroy(done[s]));
    }
    CHECK(cudaFreeHost(host));
    CHECK(cudaFree(device));
}

static void copies() {
    uint64_t all = 0;
    for (size_t bytes : {1ul, 4ul, 255ul, 4096ul, 65537ul, 1ul << 20, (1ul << 20) + 3, 33554433ul, 1ul << 26}) {
        std::vector<unsigned char> from(bytes), to(bytes);
        for (size_t i = 0; i < bytes; i++)
            from[i] = (unsigned char)(i * 7 + bytes);
        unsigned char *device, *pinned;
        CHECK(cudaMalloc(&device, bytes + 64));
        CHECK(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
        CHECK(cudaMemset(device, 0x5a, bytes + 64));
        CHECK(cudaMemcpy(device + 3, from.data(), bytes, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(to.data(), device + 3, bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpyAsync(pinned, device + 3, bytes, cudaMemcpyDeviceToHost, 0));
        CHECK(cudaStreamSynchronize(0));
        all = all * 31 + (memcmp(from.data(), to.data(), bytes) == 0) + 2 * (memcmp(from.data(), pinned, bytes) == 0);
        cudaFree(device);
        cudaFreeHost(pinned);
    }
    std::vector<int> flat(64 * 100), back(64 * 100, -1);
    for (size_t i = 0; i < flat.size(); i++)
        flat[i] = (int)i;
    int *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, 50 * 4, 64));
    CHECK(cudaMemcpy2D(pitched, pitch, flat.data(), 100 * 4, 50 * 4, 64, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(back.data(), 100 * 4, pitched, pitch, 50 * 4, 64, cudaMemcpyDeviceToHost));
    cudaFree(pitched);
    printf("copies %016lx, rectangles %016lx\n", all, digest(back.data(), back.size() * 4));
}

static void graphs() {
    const int n = 4096;
    int *device;
    std::vector<int> result(n);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaMalloc(&device, n * 4));
    CHECK(cudaMemset(device, 0, n * 4));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int k = 0; k < 20; k++)
        step<<<n / 256, 256, 0, stream>>>(device, n, k);
    CHECK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int k = 0; k < 5; k++)
        CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(result.data(), device, n * 4, cudaMemcpyDeviceToHost));
    printf("graphs %zu nodes, %016lx\n", nodes, digest(result.data(), n * 4));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    cudaFree(device);
}

static void cooperative() {
    int n = 1 << 20, blocks = 0, *from, *partial, *total, result = 0;
    std::vector<int> ones(n, 1);
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sum_together, 256, 0));
    int device = 0, together = 0;
    CHECK(cudaGetDevice(&device));
    CHECK(cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device));
    CHECK(cudaMalloc(&from, n * 4));
    CHECK(cudaMalloc(&partial, 64 * 4));
    CHECK(cudaMalloc(&total, 4));
    CHECK(cudaMemset(partial, 0, 64 * 4));
    CHECK(cudaMemset(total, 0, 4));
    CHECK(cudaMemcpy(from, ones.data(), n * 4, cudaMemcpyHostToDevice));
    void *parameters[] = {&from, &n, &partial, &total};
    CHECK(cudaLaunchCooperativeKernel((void *)sum_together, dim3(64), dim3(256), parameters, 0, 0));
    CHECK(cudaMemcpy(&result, total, 4, cudaMemcpyDeviceToHost));
    printf("cooperative %d, occupancy %d, attribute %d\n", result, blocks, together);
    cudaError_t refused = cudaLaunchCooperativeKernel((void *)sum_together, dim3(1000000), dim3(256), parameters, 0, 0);
    printf("too large a grid: %s\n", cudaGetErrorName(refused));
    cudaGetLastError();
    cudaFree(from), cudaFree(partial), cudaFree(total);
}

static void host_functions() {
    static int calls;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (int i = 1; i <= 5; i++)
        CHECK(cudaLaunchHostFunc(stream, [](void *data) { calls = calls * 10 + (int)(size_t)data; }, (void *)(size_t)i));
    CHECK(cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t status, void *) { calls = status ? -1 : calls * 10 + 6; },
                                nullptr, 0));
    CHECK(cudaStreamSynchronize(stream));
    printf("host functions %d\n", calls);
    CHECK(cudaStreamDestroy(stream));
}

static void symbols() {
    int values[64], three = 3, *device, back[64];
    for (int i = 0; i < 64; i++)
        values[i] = i * i;
    CHECK(cudaMemcpyToSymbol(table, values, sizeof values));
    CHECK(cudaMemcpyToSymbol(factor, &three, sizeof three));
    CHECK(cudaMalloc(&device, sizeof back));
    use_symbols<<<1, 64>>>(device);
    CHECK(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
    Large large;
    for (int i = 0; i < 500; i++)
        large.values[i] = i;
    int sum = 0;
    large_parameter<<<1, 1>>>(large, device);
    CHECK(cudaMemcpy(&sum, device, 4, cudaMemcpyDeviceToHost));
    printf("symbols %016lx, large parameter %d\n", digest(back, sizeof back), sum);
    cudaFree(device);
}

static void textures() {
    const int width = 64, height = 32;
    std::vector<float> from = numbers(width * height, 9), to(width * height);
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    float *device;
    CHECK(cudaMallocArray(&array, &format, width, height));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, from.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc description = {};
    description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
    description.filterMode = cudaFilterModeLinear;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    CHECK(cudaMalloc(&device, width * height * 4));
    fetch<<<dim3(width / 16, height / 16), dim3(16, 16)>>>(texture, device, width, height);
    CHECK(cudaMemcpy(to.data(), device, width * height * 4, cudaMemcpyDeviceToHost));
    printf("textures %016lx\n", digest(to.data(), width * height * 4));
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaFreeArray(array));
    cudaFree(device);
}

static void pools() {
    cudaStream_t stream;
    int *device, back[256];
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMallocAsync(&device, sizeof back, stream));
    CHECK(cudaMemsetAsync(device, 0, sizeof back, stream));
    step<<<1, 256, 0, stream>>>(device, 256, 11);
    CHECK(cudaMemcpyAsync(back, device, sizeof back, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(device, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamDestroy(stream));
    printf("pools %016lx\n", digest(back, sizeof back));
}

static void threads() {
    std::vector<std::thread> all;
    std::vector<uint64_t> results(8);
    for (int t = 0; t < 8; t++)
        all.emplace_back([t, &results] {
            const int n = 100000;
            int *device;
            std::vector<int> data(n, t);
            CHECK(cudaMalloc(&device, n * 4));
            CHECK(cudaMemcpy(device, data.data(), n * 4, cudaMemcpyHostToDevice));
            for (int k = 0; k < 50; k++)
                step<<<(n + 255) / 256, 256, 0, cudaStreamPerThread>>>(device, n, k);
            CHECK(cudaStreamSynchronize(cudaStreamPerThread));
            CHECK(cudaMemcpy(data.data(), device, n * 4, cudaMemcpyDeviceToHost));
            results[t] = digest(data.data(), n * 4);
            cudaFree(device);
        });
    for (std::thread &thread : all)
        thread.join();
    printf("threads %016lx\n", digest(results.data(), results.size() * 8));
}

static void managed() {
    const int n = 100000;
    int *data, device = 0;
    cudaPointerAttributes attributes;
    CHECK(cudaMallocManaged(&data, n * sizeof *data));
    for (int i = 0; i < n; i++)
        data[i] = i;
    CHECK(cudaGetDevice(&device));
#if CUDART_VERSION >= 13000
    CHECK(cudaMemPrefetchAsync(data, n * sizeof *data, {cudaMemLocationTypeDevice, device}, 0, 0));
    CHECK(cudaMemAdvise(data, n * sizeof *data, cudaMemAdviseSetPreferredLocation, {cudaMemLocationTypeDevice, device}));
#else
    CHECK(cudaMemPrefetchAsync(data, n * sizeof *data, device, 0));
    CHECK(cudaMemAdvise(data, n * sizeof *data, cudaMemAdviseSetPreferredLocation, device));
#endif
    for (int round = 0; round < 10; round++) {
        step<<<(n + 255) / 256, 256>>>(data, n, round);
        CHECK(cudaDeviceSynchronize());
        data[round] = round;
    }
    printf("managed %016llx\n", (unsigned long long)digest(data, n * sizeof *data));
    CHECK(cudaPointerGetAttributes(&attributes, data));
    printf("type %d, same pointers %d\n", attributes.type, attributes.devicePointer == data && attributes.hostPointer == data);
    CHECK(cudaMemset(data, 1, 400));
    CHECK(cudaMemcpy(data + 100, data, 400, cudaMemcpyDefault));
    CHECK(cudaDeviceSynchronize());
    printf("filled and copied: %08x %08x\n", data[99], data[199]);
    // A kernel and the processor at the same time.
    volatile int *shared = data;
    shared[0] = shared[1] = 0;
    answer<<<1, 1>>>(data, data + 1);
    shared[0] = 41;
    while (shared[1] == 0)
        ;
    printf("answered while it ran: %d\n", shared[1]);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(data));
    printf("freed twice: %s\n", cudaGetErrorName(cudaFree(data)));
    cudaGetLastError();
}

__managed__ int counter = 3;
__managed__ float shared_table[1000];
__global__ void count_up(int by) {
    if (threadIdx.x == 0)
        counter += by;
    shared_table[threadIdx.x] = shared_table[threadIdx.x] * 2 + by;
}
__global__ void through_pointer(int *to) { *to += counter; }

// Variables that the processor and kernels use by their names.
static void managed_variables() {
    for (int i = 0; i < 1000; i++)
        shared_table[i] = (float)i;
    printf("managed variables %d", counter);
    for (int round = 0; round < 5; round++) {
        count_up<<<1, 1000>>>(round);
        CHECK(cudaDeviceSynchronize());
        counter *= 2;
        shared_table[round] = -1.0f;
    }
    through_pointer<<<1, 1>>>(&counter);
    CHECK(cudaDeviceSynchronize());
    float copied[1000];
    CHECK(cudaMemcpyFromSymbol(copied, shared_table, sizeof copied));
    printf(" then %d, %016lx, copied %d\n", counter, digest(shared_table, sizeof shared_table),
           memcmp(copied, shared_table, sizeof copied));
}

// Two texts become one image, and what the linker says comes into a buffer.
static void linker() {
    static char information[8192], errors[8192];
    const char head[] = ".version 7.0\n.target sm_70\n.address_size 64\n";
    std::string first = std::string(head) + ".extern .func (.param .b32 r) twice(.param .b32 a);\n.visible .entry use(.param .u64 to)\n"
        "{ .reg .b64 %rd<2>; .reg .b32 %r<3>; ld.param.u64 %rd1, [to]; ld.global.u32 %r1, [%rd1];\n"
        "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call (r), twice, (a); ld.param.b32 %r2, [r]; }\n"
        "st.global.u32 [%rd1], %r2; ret; }\n";
    std::string second = std::string(head) + ".visible .func (.param .b32 r) twice(.param .b32 a)\n"
        "{ .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.u32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }\n";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
                              CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE};
    void *values[] = {information, (void *)sizeof information, errors, (void *)sizeof errors, (void *)1};
    CUlinkState state;
    CUmodule module;
    CUfunction function;
    void *image;
    size_t bytes;
    int number = 21, *device;
    CHECK(cuLinkCreate(5, options, values, &state));
    CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)first.c_str(), first.size() + 1, "first", 0, nullptr, nullptr));
    CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)second.c_str(), second.size() + 1, "second", 0, nullptr, nullptr));
    CHECK(cuLinkComplete(state, &image, &bytes));
    // How long things took is in the text, too: only whether there is one, and how its size is told.
    printf("linked %zu bytes, said %s, told %td more, wrong %zu of %zu\n", bytes, *information ? "something" : "nothing",
           (ptrdiff_t)(size_t)values[1] - (ptrdiff_t)strlen(information), strlen(errors), (size_t)values[3]);
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuLinkDestroy(state));
    CHECK(cuModuleGetFunction(&function, module, "use"));
    CHECK(cudaMalloc(&device, 4));
    CHECK(cudaMemcpy(device, &number, 4, cudaMemcpyDefault));
    void *parameters[] = {&device};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    CHECK(cudaMemcpy(&number, device, 4, cudaMemcpyDefault));
    printf("the linked kernel: %d\n", number);
    CHECK(cuModuleUnload(module));
    // What is missing is told.
    memset(errors, 0, sizeof errors);
    values[1] = (void *)sizeof information, values[3] = (void *)sizeof errors;
    CHECK(cuLinkCreate(5, options, values, &state));
    CHECK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)first.c_str(), first.size() + 1, "first", 0, nullptr, nullptr));
    int status = cuLinkComplete(state, &image, &bytes);
    printf("without the second: %d: %s (%zu)\n", status, errors, (size_t)values[3]);
    CHECK(cuLinkDestroy(state));
    cudaFree(device);
}

static void mistakes() {
    float *nothing = nullptr;
    add<<<1, 2048>>>(nothing, nothing, nothing, 0);
    printf("too many threads: %s\n", cudaGetErrorName(cudaGetLastError()));
    printf("free of a wild pointer: %s\n", cudaGetErrorName(cudaFree((void *)0x1234)));
    printf("copy to nowhere: %s\n", cudaGetErrorName(cudaMemcpy(nullptr, &nothing, 8, cudaMemcpyHostToDevice)));
    void *huge = nullptr;
    printf("too much: %s\n", cudaGetErrorName(cudaMalloc(&huge, (size_t)1 << 44)));
    cudaGetLastError();
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, &nothing));
    printf("a pointer of the host: %d\n", attributes.type);
}

int main() {
    int count = 0;
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceCount(&count));
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("%d %s %d.%d %d\n", count, properties.name, properties.major, properties.minor, properties.multiProcessorCount);
    void (*const all[])() = {vectors, matrices, streams, copies, graphs, cooperative, host_functions,
                             symbols, pools, managed, managed_variables, linker, threads, mistakes, textures};
    for (auto *one : all) {
        one();
        fflush(stdout);
    }
    say<<<1, 1>>>(42);
    CHECK(cudaDeviceSynchronize());
    fflush(stdout);
    return 0;
}
