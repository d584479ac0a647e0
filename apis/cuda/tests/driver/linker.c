/* The linker inside the driver: two inputs become one image, and what the linker says reaches the application's buffers. */
#include "common.h"

#include <unistd.h>

#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"

static const char first[] = HEAD
    ".visible .global .align 4 .u32 total = 5;\n"
    ".visible .entry add_first(.param .u32 n)\n{\n .reg .b32 %r<4>; .reg .b64 %rd<2>;\n"
    " ld.param.u32 %r1, [n]; mov.u64 %rd1, total; ld.global.u32 %r2, [%rd1]; add.u32 %r3, %r1, %r2;"
    " st.global.u32 [%rd1], %r3; ret;\n}\n";
static const char second[] = HEAD
    ".visible .entry set(.param .u64 to, .param .u32 n)\n{\n .reg .b32 %r<2>; .reg .b64 %rd<2>;\n"
    " ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [n]; st.global.u32 [%rd1], %r1; ret;\n}\n";
static const char wrong[] = HEAD ".visible .entry broken()\n{\n .reg .b32 %r<2>; add.u32 %r1, %r1, nothing; ret;\n";

enum { ROOM = 4096 };

struct logs {
    char information[ROOM], errors[ROOM];
    CUjit_option options[5];
    void *values[5];
};

static CUlinkState begin(struct logs *logs)
{
    CUlinkState state;
    struct logs fresh = {
        .options = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
                    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE},
        .values = {logs->information, (void *)ROOM, logs->errors, (void *)ROOM, (void *)1},
    };

    *logs = fresh;
    MUST(cuLinkCreate(5, logs->options, logs->values, &state));
    return state;
}

/* How much there is of a text, as its option says, and whether it is that long. What it says is the driver's business. */
static void tell(const char *name, const char *text, void *value)
{
    size_t length = strlen(text), said = (size_t)(uintptr_t)value;

    printf("%s: %s, size %s\n", name, length ? "something" : "nothing",
           said == length || said == length + 1 || (said == ROOM && !length) ? "fits" : "is something else");
}

static CUmodule link_and_load(struct logs *logs)
{
    CUlinkState state = begin(logs);
    char path[] = "/tmp/aviary-linker-XXXXXX";
    int file = mkstemp(path);
    CUmodule module;
    void *image = NULL;
    size_t size = 0;

    CHECK(file >= 0 && write(file, second, sizeof(second) - 1) == (ssize_t)sizeof(second) - 1);
    close(file);
    MUST(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)first, sizeof(first), "first", 0, NULL, NULL));
    MUST(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    unlink(path);
    MUST(cuLinkComplete(state, &image, &size));
    CHECK(image && size > 100);
    tell("information", logs->information, logs->values[1]);
    tell("errors", logs->errors, logs->values[3]);
    MUST(cuModuleLoadData(&module, image));
    MUST(cuLinkDestroy(state));
    return module;
}

int main(void)
{
    static struct logs logs;
    CUcontext context = start();
    CUmodule module = link_and_load(&logs);
    CUfunction add, set;
    CUdeviceptr total;
    CUlinkState state;
    size_t bytes;
    uint32_t n = 7, value = 0;
    void *parameters[] = {&n}, *others[] = {&total, &n}, *image;

    MUST(cuModuleGetFunction(&add, module, "add_first"));
    MUST(cuModuleGetFunction(&set, module, "set"));
    MUST(cuModuleGetGlobal(&total, &bytes, module, "total"));
    MUST(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(&value, total, sizeof(value)));
    printf("%u, %zu bytes\n", value, bytes);
    MUST(cuLaunchKernel(set, 1, 1, 1, 1, 1, 1, 0, NULL, others, NULL));
    MUST(cuMemcpyDtoH(&value, total, sizeof(value)));
    printf("%u\n", value);
    MUST(cuModuleUnload(module));

    state = begin(&logs);
    printf("wrong text: %s\n", error_name(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)wrong, sizeof(wrong), "wrong", 0, NULL, NULL)));
    tell("errors", logs.errors, logs.values[3]);
    TELL(cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/nowhere/at/all.ptx", 0, NULL, NULL));
    MUST(cuLinkDestroy(state));

    /* Without options, and with nothing in it. */
    MUST(cuLinkCreate(0, NULL, NULL, &state));
    MUST(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)second, sizeof(second), NULL, 0, NULL, NULL));
    MUST(cuLinkComplete(state, &image, NULL));
    MUST(cuModuleLoadData(&module, image));
    MUST(cuLinkDestroy(state));
    MUST(cuModuleGetFunction(&set, module, "set"));
    TELL(cuLinkCreate(1, NULL, NULL, &state));
    MUST(cuCtxDestroy(context));
    return 0;
}
