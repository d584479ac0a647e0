/* Buffers, a part of one, images and kernels whose arguments are set once, used again and again: with more of them than the device's
 * memory holds, and in several copies at once, all contents stay right.
 *
 *   crowd [BUFFERS BYTES ROUNDS [told]]   told: each round waits for a line of the input, and answers one */
#include "common.h"

enum { MOST = 64, WIDTH = 61, HEIGHT = 37, PIXELS = WIDTH * HEIGHT, PIECE = 1 << 18 };

static const char *SOURCE =
    "kernel void advance(global uint *p, uint add) { size_t i = get_global_id(0); p[i] = p[i] * 1664525u + add + (uint)i; }\n"
    "kernel void add(read_only image2d_t from, sampler_t how, global uint *to) {\n"
    "  int x = get_global_id(0), y = get_global_id(1);\n"
    "  uint4 c = read_imageui(from, how, (int2)(x, y));\n"
    "  to[y * get_global_size(0) + x] += c.x + 3 * c.y + 5 * c.z + 7 * c.w;\n"
    "}\n";

struct crowd {
    struct device device;
    size_t buffers, words;
    cl_mem all[MOST], part, image, closed, sums;
    cl_kernel steps[MOST], part_step, add;
    cl_uint *expected[MOST], sums_expected[PIXELS];
    unsigned char pixels[PIXELS * 4];
};

/* The last half of the first buffer. */
static size_t part_origin(const struct crowd *c) {
    return c->words / 2 / 1024 * 1024;
}

/* In pieces, as large transfers want room of their own between program and API server. */
static void transfer(struct crowd *c, cl_mem buffer, char *bytes, size_t size, int writes) {
    for (size_t at = 0; at < size; at += PIECE) {
        size_t part = size - at < PIECE ? size - at : PIECE;
        MUST(writes ? clEnqueueWriteBuffer(c->device.queue, buffer, CL_TRUE, at, part, bytes + at, 0, NULL, NULL)
                    : clEnqueueReadBuffer(c->device.queue, buffer, CL_TRUE, at, part, bytes + at, 0, NULL, NULL));
    }
}

static void argument(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    MUST(clSetKernelArg(kernel, index, size, value));
}

/* The image that kernels read, which the host may not touch, is a copy of one that it has written. */
static void make_images(struct crowd *c) {
    cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};
    cl_image_desc description = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = WIDTH, .image_height = HEIGHT};
    cl_int status;
    for (size_t i = 0; i < sizeof c->pixels; i++)
        c->pixels[i] = (unsigned char)(i * 31 + i / 7);
    c->image = clCreateImage(c->device.context, CL_MEM_READ_WRITE, &format, &description, NULL, &status);
    MUST(status);
    size_t origin[3] = {0}, region[3] = {WIDTH, HEIGHT, 1};
    MUST(clEnqueueWriteImage(c->device.queue, c->image, CL_TRUE, origin, region, 0, 0, c->pixels, 0, NULL, NULL));
    c->closed = clCreateImage(c->device.context, CL_MEM_READ_ONLY | CL_MEM_HOST_NO_ACCESS, &format, &description, NULL, &status);
    MUST(status);
    MUST(clEnqueueCopyImage(c->device.queue, c->image, c->closed, origin, origin, region, 0, NULL, NULL));
}

static void set_sums(struct crowd *c, cl_program program) {
    cl_int status;
    cl_sampler sampler = clCreateSampler(c->device.context, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_NEAREST, &status);
    MUST(status);
    c->sums = buffer_of(&c->device, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof c->sums_expected, c->sums_expected);
    c->add = kernel_of(program, "add");
    argument(c->add, 0, sizeof c->closed, &c->closed);
    argument(c->add, 1, sizeof sampler, &sampler);
    argument(c->add, 2, sizeof c->sums, &c->sums);
}

/* The last one of several may not be written by the host: it gets its content through the first. */
static cl_mem made_buffer(struct crowd *c, size_t k) {
    size_t bytes = c->words * 4;
    int closed = k && k + 1 == c->buffers;
    cl_mem made = buffer_of(&c->device, CL_MEM_READ_WRITE | (closed ? CL_MEM_HOST_READ_ONLY : 0), bytes, NULL);
    cl_mem written = closed ? c->all[0] : made;
    transfer(c, written, (char *)c->expected[k], bytes, 1);
    if (closed) {
        MUST(clEnqueueCopyBuffer(c->device.queue, written, made, 0, 0, bytes, 0, NULL, NULL));
        transfer(c, written, (char *)c->expected[0], bytes, 1);
    }
    return made;
}

static void make(struct crowd *c) {
    c->device = open_device(0);
    cl_program program = build(&c->device, SOURCE, "");
    for (size_t k = 0; k < c->buffers; k++) {
        c->expected[k] = calloc(c->words, sizeof **c->expected);
        for (size_t i = 0; i < c->words; i++)
            c->expected[k][i] = (cl_uint)(k * 1000003 + i);
        c->all[k] = made_buffer(c, k);
        c->steps[k] = kernel_of(program, "advance");
        argument(c->steps[k], 0, sizeof c->all[k], &c->all[k]);
    }
    cl_buffer_region region = {part_origin(c) * 4, (c->words - part_origin(c)) * 4};
    cl_int status;
    c->part = clCreateSubBuffer(c->all[0], CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    MUST(status);
    MUST(clRetainMemObject(c->part));
    MUST(clRetainMemObject(c->all[0]));
    c->part_step = kernel_of(program, "advance");
    cl_uint add = 77;
    argument(c->part_step, 0, sizeof c->part, &c->part);
    argument(c->part_step, 1, sizeof add, &add);
    make_images(c);
    set_sums(c, program);
}

static void launch(struct crowd *c, cl_kernel kernel, size_t count) {
    MUST(clEnqueueNDRangeKernel(c->device.queue, kernel, 1, NULL, &count, NULL, 0, NULL, NULL));
}

static void expect_step(cl_uint *words, size_t count, cl_uint add) {
    for (size_t i = 0; i < count; i++)
        words[i] = words[i] * 1664525u + add + (cl_uint)i;
}

static void work(struct crowd *c, cl_uint number) {
    for (size_t k = 0; k < c->buffers; k++) {
        argument(c->steps[k], 1, sizeof number, &number);
        launch(c, c->steps[k], c->words);
        expect_step(c->expected[k], c->words, number);
    }
    launch(c, c->part_step, c->words - part_origin(c));
    expect_step(c->expected[0] + part_origin(c), c->words - part_origin(c), 77);
    size_t box[2] = {WIDTH, HEIGHT};
    MUST(clEnqueueNDRangeKernel(c->device.queue, c->add, 2, NULL, box, NULL, 0, NULL, NULL));
    for (size_t i = 0; i < PIXELS; i++)
        for (int j = 0; j < 4; j++)
            c->sums_expected[i] += (cl_uint)(2 * j + 1) * c->pixels[4 * i + j];
}

static cl_uint references(cl_mem memory) {
    cl_uint count = 0;
    MUST(clGetMemObjectInfo(memory, CL_MEM_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

static int is_right(struct crowd *c, size_t k) {
    cl_uint *found = malloc(c->words * 4 + sizeof c->sums_expected);
    transfer(c, c->all[k], (char *)found, c->words * 4, 0);
    int right = !memcmp(found, c->expected[k], c->words * 4);
    MUST(clEnqueueReadBuffer(c->device.queue, c->sums, CL_TRUE, 0, sizeof c->sums_expected, found, 0, NULL, NULL));
    right &= !memcmp(found, c->sums_expected, sizeof c->sums_expected);
    cl_mem parent = NULL;
    MUST(clGetMemObjectInfo(c->part, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL));
    right &= parent == c->all[0] && references(c->part) == 2;
    free(found);
    return right;
}

static int round_is_right(struct crowd *c, cl_uint number, int told) {
    char line[16];
    if (told && !fgets(line, sizeof line, stdin))
        return 0;
    work(c, number);
    int right = is_right(c, number % c->buffers);
    if (told)
        printf(right ? "called\n" : "wrong\n");
    fflush(stdout);
    return right;
}

int main(int count, char **arguments) {
    static struct crowd c;
    char *few[] = {arguments[0], "4", "50000", "6"};
    char **numbers = count < 4 ? few : arguments;
    c.buffers = strtoul(numbers[1], NULL, 10);
    c.words = strtoul(numbers[2], NULL, 10) / 4;
    cl_uint rounds = (cl_uint)strtoul(numbers[3], NULL, 10);
    int told = count > 4;
    if (!c.buffers || c.buffers > MOST)
        return 2;
    make(&c);
    if (told) {
        printf("holding\n");
        fflush(stdout);
    }
    for (cl_uint number = 0; number < rounds; number++)
        if (!round_is_right(&c, number, told)) {
            printf("wrong in round %u\n", number);
            return 1;
        }
    for (size_t k = 0; k < c.buffers; k++)
        printf("%s buffer %zu: %lu\n", is_right(&c, k) ? "ok" : "wrong", k, digest(c.expected[k], c.words * 4));
    return 0;
}
