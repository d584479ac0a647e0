/* Answers of slicing's lexer for small programs: built and run by checks.py without OpenCL. */
#include "../server/slicing/rewrite.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN "kernel void k(global int *p) { p[get_global_id(0)] = 1; }"

static const struct {
    enum slice_verdict verdict;
    const char *source, *options;
} cases[] = {
    {SLICE_BY_OFFSET, AGAIN, ""},
    {SLICE_BY_OFFSET, "__kernel void k(__global int *p) { for (int i = 0; i < 9; i++) p[get_global_id(0)] += get_local_size(0); }", ""},
    {SLICE_BY_OFFSET, "kernel void k(global int *p) { atomic_add(p, 1); }", ""},
    {SLICE_BY_OFFSET, "// get_group_id(0)\n/* get_group_id */ constant char t[] = \"get_group_id\";" AGAIN, ""},
    {SLICE_BY_OFFSET, "void f(global int *p) { while (1) atomic_add(p, 1); }" AGAIN, ""},
    {SLICE_BY_OFFSET, "typedef struct { int a; } s; struct t { int b; }; enum { A, B }; int f(int); s g(struct t x) { s y; return y; }" AGAIN, ""},
    {SLICE_BY_OFFSET, "#pragma OPENCL EXTENSION cl_khr_global_int32_base_atomics : enable\n#if defined(A) && (B(\n#endif\n" AGAIN, ""},
    {SLICE_BY_OFFSET, "kernel __attribute__((reqd_work_group_size(8, 1, 1))) void k(global int *p) { barrier(CLK_LOCAL_MEM_FENCE); }", ""},
    {SLICE_BY_OFFSET, "static inline int f(int a) { return a; } kernel void k(global int *p) { *p = f(1); }", ""},
    {SLICE_BY_REWRITING, "kernel void k(global int *p) { p[get_group_id(0)] = 1; }", ""},
    {SLICE_BY_REWRITING, "#define G \\\n get_num_groups\nint f(void) { return G(0); } kernel void k(global int *p) { p[0] = f(); }", ""},
    {SLICE_BY_REWRITING, "kernel void k(global int *p) { p[0] = get_gl\\\nobal_size(0); }", ""},
    {SLICE_BY_REWRITING, "kernel void k(global int *p) { atomic_add(p, (int)get_global_linear_id()); }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { while (atomic_add(p, 0) < 5) ; }", ""},
    {SLICE_NEVER, "void f(global int *p) { atomic_inc(p); } kernel void k(global int *p) { do f(p); while (*p < 5); }", ""},
    {SLICE_NEVER, "#define F(p) atom_inc(p)\nkernel void k(global int *p) { for (;;) F(p); }", ""},
    {SLICE_NEVER, "kernel void k(global atomic_int *p) { again: if (atomic_load(p)) goto again; }", ""},
    {SLICE_NEVER, "kernel void k(global volatile int *p) { while (*p) ; }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { while (*p) mem_fence(CLK_GLOBAL_MEM_FENCE); }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { LOOP (;;) ADD(p, 1); }", "-DLOOP=for -DADD=atomic_add"},
    {SLICE_NEVER, "kernel void k(global int *p) { printf(\"%d\", *p); }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { P(\"%d\", *p); }", "-D P=printf"},
    {SLICE_NEVER, "kernel void k(read_only pipe int p) { }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { enqueue_kernel(get_default_queue(), 0, ndrange_1D(1), ^{ }); }", ""},
    {SLICE_NEVER, "global int n;" AGAIN, ""},
    {SLICE_NEVER, "int n = 3;" AGAIN, ""},
    {SLICE_NEVER, "struct { int a; } n;" AGAIN, ""},
    {SLICE_NEVER, "struct s { constant int *a; } n;" AGAIN, ""},
    {SLICE_NEVER, "__attribute__((aligned(4))) global int n;" AGAIN, ""},
    {SLICE_NEVER, "global int n __attribute__((aligned(4)));" AGAIN, ""},
    {SLICE_NEVER, "#define V(n) global int n\nV(x);" AGAIN, ""},
    {SLICE_NEVER, "kernel void k(global int *p) { static int n; p[n++] = 1; }", ""},
    {SLICE_NEVER, "#include \"other.h\"\n" AGAIN, ""},
    {SLICE_NEVER, "#define C(a, b) a##b\nkernel void k(global int *p) { p[0] = C(get_group, _id)(0); }", ""},
    {SLICE_NEVER, "#define F(a) void f##a(global int *p) { while (atomic_inc(p)) ; }\nF(1)\nkernel void k(global int *p) { f1(p); }", ""},
    {SLICE_NEVER, "#define F(f) void f(global int *p) { while (atomic_inc(p)) ; }\nF(g)\nkernel void k(global int *p) { g(p); }", ""},
    {SLICE_NEVER, "#define F(f) void f(global int *p)\nF(g) { while (atomic_inc(p)) ; } kernel void k(global int *p) { g(p); }", ""},
    {SLICE_NEVER, "#define F void g(global int *p)\nF { while (atomic_inc(p)) ; } kernel void k(global int *p) { g(p); }", ""},
    {SLICE_BY_OFFSET, "struct __attribute__((packed)) s { int a; }; constant int t[2] = {1, 2}; constant int u = (int){1};" AGAIN, ""},
    {SLICE_NEVER, "#define K(n) kernel void n(global int *p) { *p = 1; }\nK(k)", ""},
    {SLICE_NEVER, "#define get_group_id(d) 0\n" AGAIN, ""},
    {SLICE_NEVER, AGAIN, "-Dget_global_id=mine"},
    {SLICE_NEVER, AGAIN, "-cl-std=CLC++"},
    {SLICE_NEVER, "kernel void k(global int *p) { asm(\"\"); }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { *p = __builtin_amdgcn_workgroup_id_x(); }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) <% *p = 1; %>", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { *p = get_\\u0067roup_id(0); }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { *p = 1; } }", ""},
    {SLICE_NEVER, "kernel void k(global int *p) { *p = (1; }", ""},
    {SLICE_NEVER, "kernel void other(global int *p) { *p = 1; }", ""},
    {SLICE_NEVER, "", ""},
    {SLICE_NEVER, "\"", ""},
    {SLICE_NEVER, "#", ""},
    {SLICE_NEVER, "#define", ""},
    {SLICE_NEVER, "/*", ""},
    {SLICE_NEVER, "__attribute__((", ""},
};

/* Cuts and stirs the sources above: nothing may read outside of them (the build has the sanitizers on). */
static unsigned long stir(void) {
    unsigned long state = 5, sliced = 0;
    char text[1024], reason[128];
    for (int round = 0; round < 40000; round++) {
        state = state * 6364136223846793005ul + 1442695040888963407ul;
        const char *source = cases[(state >> 33) % (sizeof cases / sizeof cases[0])].source;
        size_t length = strlen(source), cut = length ? (state >> 20) % length : 0;
        snprintf(text, sizeof text, "%s", source);
        if (round % 2)
            text[cut] = 0;
        else if (length)
            text[cut] = "#(){};\\\"'\n/*"[(state >> 40) % 12];
        sliced += slice_judge(text, "", "k", reason, sizeof reason) != SLICE_NEVER;
        free(slice_rewrite(text));
    }
    return sliced;
}

int main(void) {
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char reason[128];
        enum slice_verdict said = slice_judge(cases[i].source, cases[i].options, "k", reason, sizeof reason);
        if (said == cases[i].verdict && (said == SLICE_NEVER) == (reason[0] != 0))
            continue;
        wrong++;
        printf("%d instead of %d (%s): %s\n", said, cases[i].verdict, reason, cases[i].source);
    }
    printf("%lu stirred programs would be sliced\n", stir());
    printf("%d of %zu wrong\n", wrong, sizeof cases / sizeof cases[0]);
    return wrong != 0;
}
