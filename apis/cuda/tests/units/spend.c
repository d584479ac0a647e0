/* Spends the device's time as somebody asks for, and tells how much work was done.
 *   spend STEPS BATCH SECONDS [graph]   launches of so many steps each, BATCH of them before each wait, for SECONDS:
 *                                       "LAUNCHES SECONDS", of what was begun and waited for in that time
 *   spend STEPS BATCH BEGIN END         the same between two times of CLOCK_MONOTONIC
 * With LOG=FILE a line for each batch: when it was begun and done, in nanoseconds. */
#include "../driver/common.h"

#include <time.h>

static const char kernel[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry spend(.param .u32 steps, .param .u64 result)\n"
    "{\n"
    ".reg .b32 %r<6>;\n.reg .b64 %rd<3>;\n.reg .pred %p<3>;\n"
    "ld.param.u32 %r1, [steps];\n"
    "ld.param.u64 %rd1, [result];\n"
    "mov.u32 %r2, 0;\n"
    "mov.u32 %r3, 1;\n"
    "AGAIN:\n"
    "mad.lo.s32 %r3, %r3, 1664525, 1013904223;\n"
    "add.u32 %r2, %r2, 1;\n"
    "setp.lt.u32 %p1, %r2, %r1;\n"
    "@%p1 bra AGAIN;\n"
    "st.global.u32 [%rd1], %r3;\n"
    "ret;\n"
    "}\n";

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static CUgraphExec as_graph(CUfunction function, void **parameters, int batch)
{
    CUgraphExec exec;
    CUgraph graph;
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < batch; i++)
        MUST(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

int main(int count, char **words)
{
    if (count < 4) {
        fprintf(stderr, "usage: spend STEPS BATCH SECONDS [graph] | spend STEPS BATCH BEGIN END\n");
        return 2;
    }
    unsigned steps = (unsigned)strtoul(words[1], NULL, 10);
    int batch = atoi(words[2]), graph = count > 4 && !strcmp(words[4], "graph");
    FILE *log = getenv("LOG") ? fopen(getenv("LOG"), "w") : NULL;
    CUdeviceptr result;
    CUfunction function;
    CUmodule module;
    CUgraphExec exec = NULL;
    long launches = 0;

    start();
    MUST(cuModuleLoadData(&module, kernel));
    MUST(cuModuleGetFunction(&function, module, "spend"));
    MUST(cuMemAlloc(&result, 4));
    void *parameters[] = {&steps, &result};
    if (graph)
        exec = as_graph(function, parameters, batch);
    MUST(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuCtxSynchronize());
    double begin = count > 4 && !graph ? atof(words[3]) : now(), end = count > 4 && !graph ? atof(words[4]) : begin + atof(words[3]);
    double first = 0, last = 0;
    for (double at = now(); at < end;) {
        double since = at;
        if (graph)
            MUST(cuGraphLaunch(exec, NULL));
        for (int i = 0; i < batch && !graph; i++)
            MUST(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
        MUST(cuCtxSynchronize());
        at = now();
        if (log)
            fprintf(log, "%.0f %.0f\n", since * 1e9, at * 1e9);
        /* From the first end of a batch in that time to the last one. */
        if (at < begin || at >= end)
            continue;
        if (first)
            launches += batch;
        else
            first = at;
        last = at;
    }
    printf("%ld %.6f\n", launches, last - first);
    if (log)
        fclose(log);
    return 0;
}
