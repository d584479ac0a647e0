/* Mapping: reading, writing, invalidating, non-blocking, twice at once; images; host pointers. */
#include "common.h"

#include <unistd.h>

/* How often a buffer is mapped. PoCL counts an unmapping after its event is complete: waits for the number that must come. */
static cl_uint map_count(cl_mem buffer, cl_uint expected) {
    cl_uint count = ~expected;
    for (int tries = 0; tries < 10000 && count != expected; tries++) {
        MUST(clGetMemObjectInfo(buffer, CL_MEM_MAP_COUNT, sizeof count, &count, NULL));
        if (count != expected)
            usleep(1000);
    }
    return count;
}

static void map_buffer(struct device *d) {
    enum { N = 1 << 14 };
    cl_int status;
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, N * 4, NULL);
    int *p = clEnqueueMapBuffer(d->queue, buffer, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0, N * 4, 0, NULL, NULL, &status);
    MUST(status);
    for (int i = 0; i < N; i++)
        p[i] = i * 3;
    MUST(clEnqueueUnmapMemObject(d->queue, buffer, p, 0, NULL, NULL));
    /* Part of it, to read and write; the rest keeps its value. */
    int *part = clEnqueueMapBuffer(d->queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 400, 4000, 0, NULL, NULL, &status);
    MUST(status);
    printf("part[0] %d part[999] %d\n", part[0], part[999]);
    part[1] = -1;
    MUST(clEnqueueUnmapMemObject(d->queue, buffer, part, 0, NULL, NULL));
    cl_event mapped;
    int *later = clEnqueueMapBuffer(d->queue, buffer, CL_FALSE, CL_MAP_READ, 0, N * 4, 0, NULL, &mapped, &status);
    MUST(status);
    MUST(clWaitForEvents(1, &mapped));
    printf("later %d %d %d %lx\n", later[0], later[100], later[101], digest(later, N * 4));
    printf("map count %u\n", map_count(buffer, 1));
    cl_event unmapped;
    MUST(clEnqueueUnmapMemObject(d->queue, buffer, later, 0, NULL, &unmapped));
    MUST(clWaitForEvents(1, &unmapped));
    printf("map count %u\n", map_count(buffer, 0));
    clReleaseEvent(mapped), clReleaseEvent(unmapped), clReleaseMemObject(buffer);
}

static void host_pointer(struct device *d) {
    enum { N = 4096 };
    cl_int status;
    int *own = aligned_alloc(4096, N * 4);
    for (int i = 0; i < N; i++)
        own[i] = i;
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, N * 4, own);
    void *told = NULL;
    MUST(clGetMemObjectInfo(buffer, CL_MEM_HOST_PTR, sizeof told, &told, NULL));
    printf("host pointer is ours: %d\n", told == own);
    cl_program program = build(d, "kernel void twice(global int *p) { p[get_global_id(0)] *= 2; }", "");
    cl_kernel twice = kernel_of(program, "twice");
    MUST(clSetKernelArg(twice, 0, sizeof buffer, &buffer));
    size_t global = N;
    MUST(clEnqueueNDRangeKernel(d->queue, twice, 1, NULL, &global, NULL, 0, NULL, NULL));
    int *p = clEnqueueMapBuffer(d->queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 64, N * 4 - 64, 0, NULL, NULL, &status);
    MUST(status);
    printf("mapped where it belongs: %d, own[16] %d own[%d] %d\n", p == own + 16, own[16], N - 1, own[N - 1]);
    own[20] = 1000;
    MUST(clEnqueueUnmapMemObject(d->queue, buffer, p, 0, NULL, NULL));
    MUST(clEnqueueNDRangeKernel(d->queue, twice, 1, NULL, &global, NULL, 0, NULL, NULL));
    int *copy = malloc(N * 4);
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, N * 4, copy, 0, NULL, NULL));
    printf("copy[20] %d copy[21] %d %lx\n", copy[20], copy[21], digest(copy, N * 4));
    cl_buffer_region region = {1024, 1024};
    cl_mem sub = clCreateSubBuffer(buffer, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    MUST(status);
    p = clEnqueueMapBuffer(d->queue, sub, CL_TRUE, CL_MAP_READ, 0, 1024, 0, NULL, NULL, &status);
    MUST(status);
    printf("sub-buffer mapped where it belongs: %d, %d\n", (char *)p == (char *)own + 1024, p[0]);
    MUST(clEnqueueUnmapMemObject(d->queue, sub, p, 0, NULL, NULL));
    MUST(clFinish(d->queue));
    clReleaseMemObject(sub), clReleaseMemObject(buffer), clReleaseKernel(twice), clReleaseProgram(program);
    free(copy), free(own);
}

static void map_image(struct device *d) {
    cl_int status;
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 64, .image_height = 32};
    cl_mem image = clCreateImage(d->context, CL_MEM_READ_WRITE, &format, &desc, NULL, &status);
    MUST(status);
    cl_uint color[4] = {1, 2, 3, 4};
    size_t origin[3] = {0}, region[3] = {64, 32, 1}, row = 0, slice = 99;
    MUST(clEnqueueFillImage(d->queue, image, color, origin, region, 0, NULL, NULL));
    size_t at[3] = {8, 4, 0}, part[3] = {16, 8, 1};
    unsigned char *p = clEnqueueMapImage(d->queue, image, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, at, part, &row, &slice, 0, NULL, NULL, &status);
    MUST(status);
    printf("row %zu: %d %d\n", row, p[0], p[7 * row + 15 * 4 + 3]);
    for (int y = 0; y < 8; y++)
        memset(p + y * row, 40 + y, 64);
    MUST(clEnqueueUnmapMemObject(d->queue, image, p, 0, NULL, NULL));
    unsigned char *all = malloc(64 * 32 * 4);
    MUST(clEnqueueReadImage(d->queue, image, CL_TRUE, origin, region, 0, 0, all, 0, NULL, NULL));
    printf("image %lx\n", digest(all, 64 * 32 * 4));
    free(all), clReleaseMemObject(image);
}

int main(void) {
    struct device d = open_device(0);
    map_buffer(&d);
    host_pointer(&d);
    map_image(&d);
    close_device(&d);
    return 0;
}
