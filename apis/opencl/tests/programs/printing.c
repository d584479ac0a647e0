/* Output of kernels goes where the program's descriptor leads when they run. */
#include "common.h"
#include <fcntl.h>

static struct device d;
static cl_kernel kernel;

static void print(int number) {
    size_t one = 1;
    MUST(clSetKernelArg(kernel, 0, sizeof number, &number));
    MUST(clEnqueueNDRangeKernel(d.queue, kernel, 1, NULL, &one, NULL, 0, NULL, NULL));
    MUST(clFinish(d.queue));
}

static void show(const char *where, int file) {
    char text[4096];
    ssize_t size = read(file, text, sizeof text - 1);
    text[size > 0 ? size : 0] = 0;
    printf("%s: %s", where, text);
    fflush(stdout);
}

int main(void) {
    d = open_device(0);
    cl_program program = build(&d, "kernel void k(int n) { printf(\"kernel %d\\n\", n); }", "");
    cl_int status;
    kernel = clCreateKernel(program, "k", &status);
    MUST(status);
    print(1);
    int own = dup(1);
    char path[] = "/tmp/printed-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    dup2(file, 1);
    print(2);
    dup2(own, 1);
    lseek(file, 0, SEEK_SET);
    show("in a file", file);
    int ends[2];
    if (pipe(ends) != 0)
        return 1;
    dup2(ends[1], 1);
    close(ends[1]);
    for (int i = 3; i < 20; i++)
        print(i);
    dup2(own, 1);
    show("in a pipe", ends[0]);
    /* The last end that could be written is gone: nobody keeps one. */
    char more;
    printf("then %zd\n", read(ends[0], &more, 1));
    fflush(stdout);
    print(20);
    if (!freopen("/dev/null", "w", stdout))
        return 1;
    print(21);
    return 0;
}
