/* The code that NVIDIA's compiler makes of `__managed__` variables, written by hand: code in the executable, registered before main,
 * with variables whose address the runtime puts where the program looks for them. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "must.h"

void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid,
                            void *block, void *grid, int *warp);
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t size,
                                   int constant, int global);
char __cudaInitModule(void **handle);

/* One text in a container; the sizes are filled in before it is registered. */
struct {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
    uint16_t kind, entry_version;
    uint32_t entry_header_size;
    uint64_t text_size;
    uint32_t compressed_size, options;
    uint16_t minor, major;
    uint32_t architecture, name_offset, name_length;
    uint64_t flags, unused, uncompressed_size;
    char text[1024];
} container = {
    .magic = 0xba55ed50, .version = 1, .header_size = 16, .kind = 1, .entry_version = 0x101, .entry_header_size = 64, .minor = 0,
    .major = 7, .architecture = 70, .flags = 0x11,
    .text = ".version 7.0\n.target sm_70\n.address_size 64\n"
            ".visible .global .attribute(.managed) .align 4 .u32 counter = 3;\n"
            ".visible .global .attribute(.managed) .align 4 .u32 table[100];\n"
            ".visible .entry count_up(.param .u32 by)\n{\n .reg .b32 %r<5>; .reg .b64 %rd<5>;\n"
            " ld.param.u32 %r1, [by]; mov.u64 %rd1, counter; ld.global.u32 %r2, [%rd1]; add.u32 %r3, %r1, %r2;\n"
            " st.global.u32 [%rd1], %r3; mov.u64 %rd2, table; mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd2, %rd3;\n"
            " st.global.u32 [%rd4], %r3; ret;\n}\n",
};
static struct {
    int magic, version;
    const void *data;
    void *names;
} wrapper = {0x466243b1, 1, &container, NULL};

static void **handle;
/* As compiled code has it: the variable is reached through this. */
static int *counter, *table;
static void count_up(int by) { (void)by; }

__attribute__((constructor)) static void register_code(void)
{
    container.text_size = strlen(container.text) + 1;
    container.text_size = (container.text_size + 7) / 8 * 8;
    container.size = 64 + container.text_size;
    handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (const char *)count_up, (char *)"count_up", "count_up", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterManagedVar(handle, (void **)&counter, (char *)"counter", "counter", 0, 4, 0, 0);
    __cudaRegisterManagedVar(handle, (void **)&table, (char *)"table", "table", 0, 400, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
}

__attribute__((destructor)) static void unregister_code(void) { __cudaUnregisterFatBinary(handle); }

static void launch(int by)
{
    dim3 one = {1, 1, 1};
    void *parameters[] = {&by};

    MUST(cudaLaunchKernel((const void *)count_up, one, one, parameters, 0, 0));
}

int main(void)
{
    int copied[100] = {0};

    /* Calls of compiled code before it first touches such a variable. */
    __cudaInitModule(handle);
    printf("at first %d\n", *counter);
    for (int round = 1; round <= 3; round++) {
        launch(round);
        MUST(cudaDeviceSynchronize());
        *counter *= 2;
    }
    printf("then %d, table %d %d %d\n", *counter, table[1], table[2], table[3]);
    table[99] = 99;
    MUST(cudaMemcpy(copied, table, sizeof(copied), cudaMemcpyDefault));
    printf("copied %d %d\n", copied[3], copied[99]);
    puts("ok variables");
    return 0;
}
