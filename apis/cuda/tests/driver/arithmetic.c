/* Single instructions of PTX against what C computes: integers of both widths, floats, conversions, memories. */
#include "common.h"
#include "kernels.h"

#include <math.h>

/* Runs instructions in one thread. They find two 64-bit inputs in %rd1 and %rd2 (their lower halves in %r1 and %r2, and
 * as floats in %f1, %f2 and %fd1, %fd2), and leave the result in %rd9. */
static uint64_t run(const char *instructions, uint64_t a, uint64_t b)
{
    static const char form[] = PTX_HEADER
        ".visible .entry one(.param .u64 p0, .param .u64 p1, .param .u64 p2)\n"
        "{\n"
        ".reg .pred %%p<6>;\n.reg .b16 %%h<4>;\n.reg .f32 %%f<16>;\n.reg .f64 %%fd<8>;\n.reg .b32 %%r<32>;\n.reg .b64 %%rd<24>;\n"
        ".local .align 8 .b8 own[64];\n"
        "ld.param.u64 %%rd0, [p0];\nld.param.u64 %%rd1, [p1];\nld.param.u64 %%rd2, [p2];\n"
        "cvt.u32.u64 %%r1, %%rd1;\ncvt.u32.u64 %%r2, %%rd2;\n"
        "mov.b32 %%f1, %%r1;\nmov.b32 %%f2, %%r2;\nmov.b64 %%fd1, %%rd1;\nmov.b64 %%fd2, %%rd2;\n"
        "mov.u64 %%rd9, 0;\n"
        "%s\n"
        "st.global.u64 [%%rd0], %%rd9;\nret;\n}\n";
    static char text[4096];
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    uint64_t result;
    void *parameters[] = {&memory, &a, &b};

    snprintf(text, sizeof(text), form, instructions);
    char log[300] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof(log)};
    if (cuModuleLoadDataEx(&module, text, 2, options, values) != CUDA_SUCCESS) {
        printf("FAIL %s: %s\n", instructions, log);
        exit(1);
    }
    MUST(cuModuleGetFunction(&function, module, "one"));
    MUST(cuMemAlloc(&memory, 64));
    MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    MUST(cuMemcpyDtoH(&result, memory, 8));
    MUST(cuMemFree(memory));
    MUST(cuModuleUnload(module));
    return result;
}

static int checks;

static void expect(const char *instructions, uint64_t a, uint64_t b, uint64_t expected)
{
    uint64_t result = run(instructions, a, b);

    checks++;
    if (result != expected)
        printf("FAIL %s of %llx, %llx: %llx, not %llx\n", instructions, (unsigned long long)a, (unsigned long long)b,
               (unsigned long long)result, (unsigned long long)expected);
}

#define WIDEN "cvt.u64.u32 %rd9, %r9;"
#define FLOAT "mov.b32 %r9, %f9; cvt.u64.u32 %rd9, %r9;"
#define DOUBLE "mov.b64 %rd9, %fd3;"
#define PREDICATE "selp.u64 %rd9, 1, 0, %p1;"

static uint64_t bits32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static uint64_t bits64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

static void integers(void)
{
    static const uint32_t values[] = {0, 1, 7, 100, 0x7fffffff, 0x80000000, 0xfffffff9, 0xffffffff, 0x12345678};

    for (int i = 0; i < 9; i++)
        for (int j = 1; j < 9; j += 2) {
            uint32_t a = values[i], b = values[j];
            int32_t sa = (int32_t)a, sb = (int32_t)b;
            expect("add.s32 %r9, %r1, %r2;" WIDEN, a, b, (uint32_t)(a + b));
            expect("sub.u32 %r9, %r1, %r2;" WIDEN, a, b, (uint32_t)(a - b));
            expect("mul.hi.u32 %r9, %r1, %r2;" WIDEN, a, b, (uint64_t)a * b >> 32);
            expect("mul.hi.s32 %r9, %r1, %r2;" WIDEN, a, b, (uint32_t)((int64_t)sa * sb >> 32));
            expect("mul.wide.s32 %rd9, %r1, %r2;", a, b, (uint64_t)((int64_t)sa * sb));
            expect("mad.lo.s32 %r9, %r1, %r2, 5;" WIDEN, a, b, (uint32_t)(a * b + 5));
            expect("div.u32 %r9, %r1, %r2;" WIDEN, a, b, a / b);
            expect("rem.u32 %r9, %r1, %r2;" WIDEN, a, b, a % b);
            if (!(a == 0x80000000 && sb == -1)) {
                expect("div.s32 %r9, %r1, %r2;" WIDEN, a, b, (uint32_t)(sa / sb));
                expect("rem.s32 %r9, %r1, %r2;" WIDEN, a, b, (uint32_t)(sa % sb));
            }
            expect("min.s32 %r9, %r1, %r2;" WIDEN, a, b, (uint32_t)(sa < sb ? sa : sb));
            expect("max.u32 %r9, %r1, %r2;" WIDEN, a, b, a > b ? a : b);
            expect("setp.lt.s32 %p1, %r1, %r2;" PREDICATE, a, b, sa < sb);
            expect("setp.hi.u32 %p1, %r1, %r2;" PREDICATE, a, b, a > b);
        }
    expect("shr.s32 %r9, %r1, %r2;" WIDEN, 0x80000000, 4, 0xf8000000);
    expect("shr.u32 %r9, %r1, %r2;" WIDEN, 0x80000000, 4, 0x08000000);
    expect("shr.s32 %r9, %r1, %r2;" WIDEN, 0x80000000, 40, 0xffffffff);
    expect("shl.b32 %r9, %r1, %r2;" WIDEN, 0xff, 32, 0);
    expect("shl.b64 %rd9, %rd1, %r2;", 0xff, 40, 0xff0000000000);
    expect("and.b32 %r9, %r1, %r2;" WIDEN, 0xff0f, 0x0ff0, 0x0f00);
    expect("xor.b64 %rd9, %rd1, -1;", 0xff, 0, ~0xffULL);
    expect("not.b32 %r9, %r1;" WIDEN, 0xff, 0, 0xffffff00);
    expect("popc.b32 %r9, %r1;" WIDEN, 0xff0f, 0, 12);
    expect("clz.b32 %r9, %r1;" WIDEN, 0xff, 0, 24);
    expect("clz.b64 %r9, %rd1;" WIDEN, 0xff, 0, 56);
    expect("brev.b32 %r9, %r1;" WIDEN, 0x1, 0, 0x80000000);
    expect("bfe.u32 %r9, %r1, 4, 8;" WIDEN, 0x12345678, 0, 0x67);
    expect("bfe.s32 %r9, %r1, 4, 4;" WIDEN, 0x000000f0, 0, 0xffffffff);
    expect("bfi.b32 %r9, %r1, %r2, 8, 8;" WIDEN, 0xab, 0x11111111, 0x1111ab11);
    expect("abs.s32 %r9, %r1;" WIDEN, 0xfffffff9, 0, 7);
    expect("mul.lo.s64 %rd9, %rd1, %rd2;", 0x123456789a, 0x1000, 0x123456789a000);
    expect("mul.hi.u64 %rd9, %rd1, %rd2;", 0xffffffffffffffff, 0x10, 0xf);
    expect("div.s64 %rd9, %rd1, %rd2;", (uint64_t)-100, 7, (uint64_t)-14);
    expect("mad.wide.u32 %rd9, %r1, 8, %rd2;", 0xffffffff, 0x100, 0x7fffffff8 + 0x100);
    expect("selp.b32 %r9, %r1, %r2, %p1;" WIDEN, 1, 2, 2);
    expect("setp.eq.u32 %p2, %r1, 1; setp.ne.and.s32 %p1|%p3, %r1, %r2, %p2;" PREDICATE, 1, 2, 1);
    expect("setp.eq.u32 %p1, %r1, 1; not.pred %p1, %p1;" PREDICATE, 1, 0, 0);
    expect("setp.eq.u32 %p1, %r1, 1; @!%p1 mov.u64 %rd9, 5; @%p1 mov.u64 %rd9, 6;", 1, 0, 6);
    expect("mov.b64 {%r3, %r4}, %rd1; mov.b64 %rd9, {%r4, %r3};", 0x1122334455667788, 0, 0x5566778811223344);
}

static void floats(void)
{
    static const float values[] = {0, 1, -2.5f, 3.0e38f, 1.0e-40f, 0.1f, -7, INFINITY};

    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j += 3) {
            float a = values[i], b = values[j];
            uint64_t x = bits32(a), y = bits32(b);
            if (!isnan(a + b))
                expect("add.rn.f32 %f9, %f1, %f2;" FLOAT, x, y, bits32(a + b));
            if (!isnan(a * b))
                expect("mul.f32 %f9, %f1, %f2;" FLOAT, x, y, bits32(a * b));
            if (!isnan(a * b))
                expect("fma.rn.f32 %f9, %f1, %f2, 0f3F800000;" FLOAT, x, y, bits32(fmaf(a, b, 1)));
            if (b != 0 && !isnan(a / b))
                expect("div.rn.f32 %f9, %f1, %f2;" FLOAT, x, y, bits32(a / b));
            expect("setp.lt.f32 %p1, %f1, %f2;" PREDICATE, x, y, a < b);
            expect("setp.geu.f32 %p1, %f1, %f2;" PREDICATE, x, y, a >= b);
            expect("max.f32 %f9, %f1, %f2;" FLOAT, x, y, bits32(fmaxf(a, b)));
        }
    expect("sqrt.rn.f32 %f9, %f1;" FLOAT, bits32(2), 0, bits32(sqrtf(2)));
    expect("neg.f32 %f9, %f1;" FLOAT, bits32(2), 0, bits32(-2));
    expect("add.f64 %fd3, %fd1, %fd2;" DOUBLE, bits64(0.1), bits64(0.2), bits64(0.1 + 0.2));
    expect("fma.rn.f64 %fd3, %fd1, %fd2, %fd1;" DOUBLE, bits64(0.1), bits64(0.3), bits64(fma(0.1, 0.3, 0.1)));
    expect("sqrt.rn.f64 %fd3, %fd1;" DOUBLE, bits64(3), 0, bits64(sqrt(3)));
    expect("setp.nan.f32 %p1, %f1, %f2;" PREDICATE, bits32(NAN), bits32(1), 1);
    expect("setp.ne.f32 %p1, %f1, %f2;" PREDICATE, bits32(NAN), bits32(1), 0);
    expect("setp.neu.f32 %p1, %f1, %f2;" PREDICATE, bits32(NAN), bits32(1), 1);
}

static void conversions(void)
{
    expect("cvt.rn.f32.s32 %f9, %r1;" FLOAT, (uint32_t)-5, 0, bits32(-5));
    expect("cvt.rn.f32.u32 %f9, %r1;" FLOAT, 0xffffffff, 0, bits32(4294967296.0f));
    expect("cvt.rzi.s32.f32 %r9, %f1;" WIDEN, bits32(-2.7f), 0, (uint32_t)-2);
    expect("cvt.rni.s32.f32 %r9, %f1;" WIDEN, bits32(2.5f), 0, 2);
    expect("cvt.rmi.s32.f32 %r9, %f1;" WIDEN, bits32(-2.1f), 0, (uint32_t)-3);
    expect("cvt.rpi.f32.f32 %f9, %f1;" FLOAT, bits32(2.1f), 0, bits32(3));
    expect("cvt.rzi.s32.f32 %r9, %f1;" WIDEN, bits32(1e20f), 0, 0x7fffffff);
    expect("cvt.rzi.u32.f32 %r9, %f1;" WIDEN, bits32(-1.0f), 0, 0);
    expect("cvt.f64.f32 %fd3, %f1;" DOUBLE, bits32(0.1f), 0, bits64(0.1f));
    expect("cvt.rn.f32.f64 %f9, %fd1;" FLOAT, bits64(0.1), 0, bits32(0.1f));
    expect("cvt.rn.f64.s64 %fd3, %rd1;" DOUBLE, (uint64_t)-77, 0, bits64(-77));
    expect("cvt.s64.s32 %rd9, %r1;", (uint32_t)-5, 0, (uint64_t)-5);
    expect("cvt.u64.u32 %rd9, %r1;", (uint32_t)-5, 0, (uint32_t)-5);
    expect("cvt.s32.s8 %r9, %r1;" WIDEN, 0x1ff, 0, 0xffffffff);
    expect("cvt.u32.u16 %r9, %r1;" WIDEN, 0x12345, 0, 0x2345);
    expect("cvt.sat.u32.s32 %r9, %r1;" WIDEN, (uint32_t)-5, 0, 0);
    expect("cvt.sat.f32.f32 %f9, %f1;" FLOAT, bits32(3), 0, bits32(1));
}

static void memories(void)
{
    expect("st.local.u64 [own+8], %rd1; ld.local.u32 %r9, [own+12];" WIDEN, 0x1122334455667788, 0, 0x11223344);
    expect("mov.u64 %rd3, own; cvta.local.u64 %rd4, %rd3; st.u32 [%rd4+16], %r1; ld.local.u32 %r9, [own+16];" WIDEN, 0x99, 0, 0x99);
    expect("st.global.v2.u32 [%rd0+8], {%r1, %r2}; ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd0];"
           "add.u32 %r9, %r5, %r6;" WIDEN, 30, 12, 42);
    expect("st.global.u8 [%rd0+8], %r1; ld.global.s8 %r9, [%rd0+8];" WIDEN, 0xff, 0, 0xffffffff);
    expect("st.global.u16 [%rd0+8], %r1; ld.global.u16 %r9, [%rd0+8];" WIDEN, 0x12345, 0, 0x2345);
    expect("st.global.u32 [%rd0+8], %r1; atom.global.add.u32 %r3, [%rd0+8], %r2; ld.global.u32 %r4, [%rd0+8];"
           "sub.u32 %r9, %r4, %r3;" WIDEN, 100, 23, 23);
    expect("st.global.u32 [%rd0+8], %r1; atom.global.cas.b32 %r9, [%rd0+8], %r1, %r2; ld.global.u32 %r9, [%rd0+8];" WIDEN, 5, 6, 6);
    expect("st.global.u32 [%rd0+8], %r1; atom.global.exch.b32 %r9, [%rd0+8], %r2;" WIDEN, 5, 6, 5);
    expect("st.global.f32 [%rd0+8], %f1; red.global.add.f32 [%rd0+8], %f2; ld.global.f32 %f9, [%rd0+8];" FLOAT,
           bits32(1.5f), bits32(2.25f), bits32(3.75f));
    expect("st.global.u32 [%rd0+8], %r1; atom.global.min.s32 %r3, [%rd0+8], %r2; ld.global.u32 %r9, [%rd0+8];" WIDEN, 5, (uint32_t)-3,
           (uint32_t)-3);
    expect("st.global.u32 [%rd0+8], %r1; atom.global.inc.u32 %r3, [%rd0+8], %r2; ld.global.u32 %r9, [%rd0+8];" WIDEN, 6, 6, 0);
}

int main(void)
{
    CUcontext context = start();

    integers();
    floats();
    conversions();
    memories();
    printf("%d instructions\n", checks);
    MUST(cuCtxDestroy(context));
    puts("ok arithmetic");
    return 0;
}
