/* A program whose own stream holds its lines back, as one into a file or a pipe does: the lines of its kernels stand among
 * them where the program waited, none before what was written earlier. */
#include "common.h"
#include "kernels.h"

static const char saying[] = PTX_HEADER
    ".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 vprintf_param_0,\n.param .b64 vprintf_param_1\n)\n;\n"
    /* "kernel %d\n" */
    ".global .align 1 .b8 $format[11] = {107, 101, 114, 110, 101, 108, 32, 37, 100, 10};\n"
    ".visible .entry say(.param .u32 p0)\n"
    "{\n.local .align 8 .b8 __local_depot0[8];\n.reg .b64 %SP;\n.reg .b64 %SPL;\n" PTX_REGISTERS
    "mov.u64 %SPL, __local_depot0;\n"
    "cvta.local.u64 %SP, %SPL;\n"
    "ld.param.u32 %r1, [p0];\n"
    "add.u64 %rd1, %SP, 0;\n"
    "add.u64 %rd2, %SPL, 0;\n"
    "st.local.u32 [%rd2], %r1;\n"
    "mov.u64 %rd3, $format;\n"
    "cvta.global.u64 %rd4, %rd3;\n"
    "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n.param .b64 param0;\nst.param.b64 [param0+0], %rd4;\n"
    ".param .b64 param1;\nst.param.b64 [param1+0], %rd1;\n.param .b32 retval0;\n"
    "call.uni (retval0), \nvprintf, \n(\nparam0, \nparam1\n);\nld.param.b32 %r2, [retval0+0];\n} // callseq 0\n"
    "ret;\n"
    "}\n";

static CUfunction function;

static void say(unsigned number, CUstream stream)
{
    void *parameters[] = {&number};

    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

int main(void)
{
    static char buffer[1 << 16];
    CUcontext context;
    CUmodule module;
    CUstream stream;
    CUevent event;
    CUdeviceptr memory;
    unsigned word = 0;

    setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
    printf("before everything\n");
    context = start();
    MUST(cuModuleLoadData(&module, saying));
    MUST(cuModuleGetFunction(&function, module, "say"));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, 0));
    MUST(cuMemAlloc(&memory, 4));
    printf("before the first kernel\n");
    say(1, stream);
    printf("while it runs\n");
    MUST(cuStreamSynchronize(stream));
    printf("after it\n");
    say(2, stream);
    MUST(cuCtxSynchronize());
    printf("no end of a line, ");
    say(3, NULL);
    MUST(cuMemcpyDtoH(&word, memory, 4));
    printf("after a copy\n");
    say(4, stream);
    MUST(cuEventRecord(event, stream));
    printf("before an event\n");
    MUST(cuEventSynchronize(event));
    printf("after an event\n");
    for (unsigned i = 5; i < 40; i++) {
        printf("line %u\n", i);
        say(i, stream);
        MUST(cuStreamSynchronize(stream));
    }
    printf("before the module ends\n");
    MUST(cuCtxSynchronize());
    MUST(cuModuleUnload(module));
    printf("before the context ends\n");
    MUST(cuCtxDestroy(context));
    puts("ok buffered");
    return 0;
}
