/* Maps a large buffer many times, over the vendor and not, says so and waits to be looked at. */
#include "common.h"

int main(void) {
    enum { BYTES = 64 << 20, TURNS = 200 };
    struct device d = open_device(0);
    cl_mem buffer = buffer_of(&d, CL_MEM_READ_WRITE, BYTES, NULL);
    for (int i = 0; i < TURNS; i++) {
        cl_int status;
        cl_event event = NULL;
        char *p = clEnqueueMapBuffer(d.queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, BYTES, 0, NULL, i % 2 ? &event : NULL, &status);
        MUST(status);
        p[i * 4096]++;
        MUST(clEnqueueUnmapMemObject(d.queue, buffer, p, 0, NULL, NULL));
        if (event)
            clReleaseEvent(event);
    }
    MUST(clFinish(d.queue));
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    pause();
    return 0;
}
