/* A process that forks before and after it used the API; the children use it themselves. */
#include "common.h"
#include <sys/wait.h>

static int compute(int seed) {
    struct device d = open_device(0);
    int value = seed, pattern = seed * 3;
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, 4096, NULL);
    MUST(clEnqueueFillBuffer(d.queue, buffer, &pattern, 4, 0, 4096, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d.queue, buffer, CL_TRUE, 400, 4, &value, 0, NULL, NULL));
    clReleaseMemObject(buffer);
    close_device(&d);
    return value;
}

static void child(int seed) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(compute(seed) == seed * 3 ? 0 : 1);
    int status = -1;
    waitpid(pid, &status, 0);
    printf("child %d: %d\n", seed, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
}

int main(int count, char **arguments) {
    (void)arguments;
    child(1);
    child(2);
    printf("parent: %d\n", compute(5));
    /* Native runtimes with threads of their own do not survive this; Aviary's guest library does. */
    if (count > 1)
        child(3);
    printf("parent again: %d\n", compute(6));
    return 0;
}
