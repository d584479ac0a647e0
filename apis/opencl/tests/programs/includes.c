/* Sources that include files: of the program's working folder, of relative and absolute folders of `-I`, after a change of the
 * working folder, of a folder that only the program's user may read, files that include others, and names that macros make. */
#include "common.h"
#include <sys/stat.h>

static struct device d;

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        exit(2);
}

/* Answers about a build: codes, its own options, and the names in the log. */
static void show_build(const char *what, const char *source, const char *options) {
    cl_int status;
    char text[8192] = "";
    cl_program program = clCreateProgramWithSource(d.context, 1, &source, NULL, &status);
    MUST(status);
    printf("%s: %d\n", what, clBuildProgram(program, 1, &d.device, options, NULL, NULL));
    SHOW(clGetProgramBuildInfo(program, d.device, CL_PROGRAM_BUILD_OPTIONS, sizeof text, text, NULL));
    printf("  options %s\n", text);
    size_t size = 0;
    MUST(clGetProgramBuildInfo(program, d.device, CL_PROGRAM_BUILD_OPTIONS, 0, NULL, &size));
    printf("  %d\n", size == strlen(text) + 1);
    text[0] = 0;
    SHOW(clGetProgramBuildInfo(program, d.device, CL_PROGRAM_BUILD_LOG, sizeof text, text, NULL));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strstr(line, "wrong.h"))
            printf("  log %s\n", line);
    MUST(clReleaseProgram(program));
}

int main(void) {
    char folder[] = "/tmp/includes-XXXXXX", options[512], text[64];
    if (!mkdtemp(folder) || chdir(folder) != 0 || mkdir("below", 0755) != 0 || mkdir("private", 0700) != 0)
        return 2;
    /* A number that no run before had: no runtime has this program in a cache. */
    snprintf(text, sizeof text, "#define V %d\n", (int)(time(NULL) ^ getpid()));
    put("here.h", text);
    put("private/mine.h", text);
    chmod("private/mine.h", 0600);
    put("below/there.h", "#include \"../here.h\"\n#include \"next.h\"\n");
    put("below/next.h", "#define NEXT 1\n#ifndef NEXT\n#include \"not there.h\"\n#endif\n");
    put("below/here.h", "#define V wrong folder\n");
    put("below/made.h", "#define TEXT_OF(name) #name\n#define MADE(name) TEXT_OF(below/name.h)\n");
    put("below/wrong.h", "#error wrong\n");
    d = open_device(0);
    show_build("working folder", "#include \"here.h\"\nkernel void k(global int *a) { *a = V; }", "");
    show_build("its name", "#include \"here.h\"\nkernel void k(global int *a) { *a = V + 1; }", "-I .");
    show_build("before -I", "#include \"here.h\"\nkernel void k(global int *a) { *a = V + 2; }", "-Ibelow");
    show_build("relative", "  #  include <there.h>\nkernel void k(global int *a) { *a = V + NEXT + 2; }", "-Ibelow -DX=1");
    show_build("way back", "#include \"there.h\"\nkernel void k(global int *a) { *a = V + NEXT + 3; }", "-I below/../private/../below");
    snprintf(options, sizeof options, "-I %s/private", folder);
    /* The name of the folder is another one in each run. */
    cl_int status;
    const char *source = "#include <mine.h>\nkernel void k(global int *a) { *a = V + 5; }";
    cl_program program = clCreateProgramWithSource(d.context, 1, &source, NULL, &status);
    MUST(status);
    SHOW(clBuildProgram(program, 1, &d.device, options, NULL, NULL));
    SHOW(clCompileProgram(program, 1, &d.device, options, 0, NULL, NULL, NULL, NULL));
    char back[512] = "";
    SHOW(clGetProgramBuildInfo(program, d.device, CL_PROGRAM_BUILD_OPTIONS, sizeof back, back, NULL));
    printf("own options %d\n", strcmp(back, options) == 0);
    MUST(clReleaseProgram(program));
    snprintf(options, sizeof options, "-D FOLDER=%s/private -D TEXT(x)=#x -D STRING(x)=TEXT(x)", folder);
    source = "#include STRING(FOLDER/mine.h)\nkernel void k(global int *a) { *a = V + 6; }";
    program = clCreateProgramWithSource(d.context, 1, &source, NULL, &status);
    MUST(status);
    SHOW(clBuildProgram(program, 1, &d.device, options, NULL, NULL));
    SHOW(clCompileProgram(program, 1, &d.device, options, 0, NULL, NULL, NULL, NULL));
    MUST(clReleaseProgram(program));
    show_build("macro", "#define NAME \"here.h\"\n#include NAME\nkernel void k(global int *a) { *a = V + 10; }", "");
    show_build("macros of options", "#include STRING(FOLDER/there.h)\nkernel void k(global int *a) { *a = V + NEXT + 11; }",
               "-D FOLDER=below -DTEXT(x)=#x -D STRING(x)=TEXT(x)");
    show_build("macro of a file", "#include \"below/made.h\"\n#include MADE(next)\nkernel void k(global int *a) { *a = NEXT + 12; }", "");
    show_build("pasted", "#define JOIN(a, b) a##b\n#define ONE below\n#define below_two <below/next.h>\n#define S(x, y) JOIN(x, y)\n"
               "#include S(ONE, _two)\nkernel void k(global int *a) { *a = NEXT + 13; }", "");
    show_build("either", "#ifdef THERE\n#define NAME \"nowhere.h\"\n#else\n#define NAME \\\n  <here.h> // a comment\n#endif\n"
               "#ifdef OTHER\n#undef NAME\n#define NAME \"below/next.h\"\n#endif\n#include NAME\n"
               "kernel void k(global int *a) { *a = V + 14; }", "");
    show_build("without an end", "#define F(x) F(x) F(x)\n#define G F(G) F(G)\n#include G\nkernel void k(global int *a) { *a = 15; }", "");
    show_build("error", "#include \"wrong.h\"\nkernel void k(global int *a) { *a = 6; }", "-I below");
    show_build("not there", "#include \"nowhere.h\"\nkernel void k(global int *a) { *a = 7; }", "-I below");
    if (chdir("below") != 0)
        return 2;
    show_build("after a change", "#include \"next.h\"\nkernel void k(global int *a) { *a = NEXT + 8; }", "");
    close_device(&d);
    return 0;
}
