/* Images of every kind, samplers, pitches, copies between images and buffers. */
#include "common.h"

static const char *SOURCE =
    "kernel void invert(read_only image2d_t from, write_only image2d_t to, sampler_t s) {\n"
    "  int2 at = (int2)(get_global_id(0), get_global_id(1));\n"
    "  write_imageui(to, at, 255u - read_imageui(from, s, at));\n"
    "}\n"
    "constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;\n"
    "kernel void sum_volume(read_only image3d_t from, global float *to) {\n"
    "  float4 sum = 0;\n"
    "  for (int z = 0; z < 4; z++) sum += read_imagef(from, nearest, (int4)(get_global_id(0), get_global_id(1), z, 0));\n"
    "  to[get_global_id(1) * get_global_size(0) + get_global_id(0)] = sum.x;\n"
    "}\n";

static cl_mem image_of(struct device *d, cl_mem_flags flags, cl_channel_order order, cl_channel_type type,
                       const cl_image_desc *desc, void *host, const char *what) {
    cl_int status;
    cl_image_format format = {order, type};
    cl_mem image = clCreateImage(d->context, flags, &format, desc, host, &status);
    printf("%s: %d\n", what, status);
    return image;
}

static void flat(struct device *d, cl_program program) {
    enum { W = 40, H = 24, PITCH = 256 };
    unsigned char *pixels = malloc(PITCH * H), *result = malloc(PITCH * H);
    for (int i = 0; i < PITCH * H; i++)
        pixels[i] = i * 31;
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = W, .image_height = H, .image_row_pitch = PITCH};
    cl_mem from = image_of(d, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, CL_RGBA, CL_UNSIGNED_INT8, &desc, pixels, "from");
    desc.image_row_pitch = 0;
    cl_mem to = image_of(d, CL_MEM_WRITE_ONLY, CL_RGBA, CL_UNSIGNED_INT8, &desc, NULL, "to");
    cl_int status;
    cl_sampler sampler = clCreateSampler(d->context, CL_FALSE, CL_ADDRESS_CLAMP, CL_FILTER_NEAREST, &status);
    MUST(status);
    cl_kernel invert = kernel_of(program, "invert");
    MUST(clSetKernelArg(invert, 0, sizeof from, &from));
    MUST(clSetKernelArg(invert, 1, sizeof to, &to));
    MUST(clSetKernelArg(invert, 2, sizeof sampler, &sampler));
    size_t global[2] = {W, H}, origin[3] = {0}, region[3] = {W, H, 1};
    MUST(clEnqueueNDRangeKernel(d->queue, invert, 2, NULL, global, NULL, 0, NULL, NULL));
    MUST(clEnqueueReadImage(d->queue, to, CL_TRUE, origin, region, 0, 0, result, 0, NULL, NULL));
    printf("inverted %lx, %d and %d\n", digest(result, W * H * 4), pixels[PITCH + 5], result[W * 4 + 5]);
    /* Into memory with a pitch: what is between the rows stays. */
    memset(result, 0x5a, PITCH * H);
    cl_event event;
    MUST(clEnqueueReadImage(d->queue, to, CL_FALSE, origin, region, PITCH, 0, result, 0, NULL, &event));
    MUST(clWaitForEvents(1, &event));
    printf("with a pitch %lx, gap %x\n", digest(result, PITCH * (H - 1)), result[W * 4]);
    MUST(clEnqueueWriteImage(d->queue, to, CL_TRUE, origin, region, PITCH, 0, pixels, 0, NULL, NULL));
    cl_mem buffer = buffer_of(d, CL_MEM_READ_WRITE, W * H * 4, NULL);
    MUST(clEnqueueCopyImageToBuffer(d->queue, to, buffer, origin, region, 0, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, buffer, CL_TRUE, 0, W * H * 4, result, 0, NULL, NULL));
    printf("through a buffer %lx\n", digest(result, W * H * 4));
    MUST(clEnqueueCopyBufferToImage(d->queue, buffer, from, 0, origin, region, 0, NULL, NULL));
    size_t at[3] = {3, 2, 0}, part[3] = {20, 10, 1};
    MUST(clEnqueueCopyImage(d->queue, from, to, origin, at, part, 0, NULL, NULL));
    MUST(clEnqueueReadImage(d->queue, to, CL_TRUE, at, part, 0, 0, result, 0, NULL, NULL));
    printf("a part %lx\n", digest(result, 20 * 10 * 4));
    size_t width, pitch, element;
    cl_image_format format;
    MUST(clGetImageInfo(from, CL_IMAGE_WIDTH, sizeof width, &width, NULL));
    MUST(clGetImageInfo(from, CL_IMAGE_ROW_PITCH, sizeof pitch, &pitch, NULL));
    MUST(clGetImageInfo(from, CL_IMAGE_ELEMENT_SIZE, sizeof element, &element, NULL));
    MUST(clGetImageInfo(from, CL_IMAGE_FORMAT, sizeof format, &format, NULL));
    printf("width %zu element %zu format %x %x\n", width, element, format.image_channel_order, format.image_channel_data_type);
    clReleaseEvent(event), clReleaseSampler(sampler), clReleaseKernel(invert);
    clReleaseMemObject(from), clReleaseMemObject(to), clReleaseMemObject(buffer), free(pixels), free(result);
}

static void volume(struct device *d, cl_program program) {
    enum { W = 16, H = 8, D = 4 };
    float *voxels = malloc(W * H * D * 4 * 4), sums[W * H];
    for (int i = 0; i < W * H * D * 4; i++)
        voxels[i] = i * 0.25f;
    cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE3D, .image_width = W, .image_height = H, .image_depth = D};
    cl_mem from = image_of(d, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, CL_RGBA, CL_FLOAT, &desc, voxels, "volume");
    cl_mem to = buffer_of(d, CL_MEM_WRITE_ONLY, sizeof sums, NULL);
    cl_kernel kernel = kernel_of(program, "sum_volume");
    MUST(clSetKernelArg(kernel, 0, sizeof from, &from));
    MUST(clSetKernelArg(kernel, 1, sizeof to, &to));
    size_t global[2] = {W, H};
    MUST(clEnqueueNDRangeKernel(d->queue, kernel, 2, NULL, global, NULL, 0, NULL, NULL));
    MUST(clEnqueueReadBuffer(d->queue, to, CL_TRUE, 0, sizeof sums, sums, 0, NULL, NULL));
    printf("sums %g %g %lx\n", sums[0], sums[W * H - 1], digest(sums, sizeof sums));
    cl_int status;
    size_t origin[3] = {2, 1, 1}, region[3] = {4, 3, 2}, row, slice;
    float *p = clEnqueueMapImage(d->queue, from, CL_TRUE, CL_MAP_READ, origin, region, &row, &slice, 0, NULL, NULL, &status);
    MUST(status);
    printf("row %zu slice %zu first %g, where it belongs %d\n", row, slice, p[0], p == voxels + ((1 * H + 1) * W + 2) * 4);
    MUST(clEnqueueUnmapMemObject(d->queue, from, p, 0, NULL, NULL));
    MUST(clFinish(d->queue));
    clReleaseKernel(kernel), clReleaseMemObject(from), clReleaseMemObject(to), free(voxels);
}

static void kinds(struct device *d) {
    unsigned short *texels = calloc(64 * 16 * 4, 2), *back = calloc(64 * 16 * 4, 2);
    for (int i = 0; i < 64 * 16 * 4; i++)
        texels[i] = i;
    cl_image_desc line = {.image_type = CL_MEM_OBJECT_IMAGE1D, .image_width = 64};
    cl_mem one = image_of(d, CL_MEM_COPY_HOST_PTR, CL_RGBA, CL_UNSIGNED_INT16, &line, texels, "1d");
    size_t origin[3] = {0}, region[3] = {64, 1, 1};
    MUST(clEnqueueReadImage(d->queue, one, CL_TRUE, origin, region, 0, 0, back, 0, NULL, NULL));
    printf("1d %lx\n", digest(back, 64 * 8));
    cl_image_desc lines = {.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY, .image_width = 64, .image_array_size = 8};
    cl_mem array = image_of(d, CL_MEM_COPY_HOST_PTR, CL_RGBA, CL_UNSIGNED_INT16, &lines, texels, "1d array");
    region[1] = 8;
    MUST(clEnqueueReadImage(d->queue, array, CL_TRUE, origin, region, 0, 0, back, 0, NULL, NULL));
    printf("1d array %lx\n", digest(back, 64 * 8 * 8));
    cl_image_desc pages = {.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY, .image_width = 16, .image_height = 16, .image_array_size = 4};
    cl_mem book = image_of(d, CL_MEM_COPY_HOST_PTR, CL_RGBA, CL_UNSIGNED_INT16, &pages, texels, "2d array");
    region[0] = 16, region[1] = 16, region[2] = 4;
    MUST(clEnqueueReadImage(d->queue, book, CL_TRUE, origin, region, 0, 0, back, 0, NULL, NULL));
    printf("2d array %lx\n", digest(back, 16 * 16 * 4 * 8));
    cl_mem buffer = buffer_of(d, CL_MEM_COPY_HOST_PTR, 64 * 8, texels);
    cl_image_desc over = {.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER, .image_width = 64, .buffer = buffer};
    cl_mem view = image_of(d, CL_MEM_READ_ONLY, CL_RGBA, CL_UNSIGNED_INT16, &over, NULL, "1d buffer");
    cl_mem behind = NULL;
    SHOW(clGetImageInfo(view, CL_IMAGE_BUFFER, sizeof behind, &behind, NULL));
    printf("its buffer is the same: %d\n", behind == buffer);
    if (view)
        clReleaseMemObject(view);
    clReleaseMemObject(one), clReleaseMemObject(array), clReleaseMemObject(book), clReleaseMemObject(buffer);
    free(texels), free(back);
}

int main(void) {
    struct device d = open_device(0);
    cl_uint formats = 0;
    MUST(clGetSupportedImageFormats(d.context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, 0, NULL, &formats));
    cl_image_format *list = calloc(formats, sizeof *list);
    MUST(clGetSupportedImageFormats(d.context, CL_MEM_READ_WRITE, CL_MEM_OBJECT_IMAGE2D, formats, list, NULL));
    printf("%u formats %lx\n", formats, digest(list, formats * sizeof *list));
    free(list);
    cl_program program = build(&d, SOURCE, "");
    flat(&d, program);
    volume(&d, program);
    kinds(&d);
    clReleaseProgram(program);
    close_device(&d);
    return 0;
}
