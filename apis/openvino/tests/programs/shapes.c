/* Dimensions, ranks, shapes, partial shapes, layouts. */
#include "common.h"

static void partial(const char *what, ov_partial_shape_t shape) {
    const char *text = ov_partial_shape_to_string(shape);
    ov_shape_t fixed = {0, NULL};
    say("%s: %s, dynamic %d", what, text, ov_partial_shape_is_dynamic(shape));
    ov_free(text);
    ov_status_e status = TOLD(ov_partial_shape_to_shape(shape, &fixed));
    if (status == OK)
        say_shape("as a shape", &fixed);
}

static void partial_shapes(void) {
    ov_partial_shape_t shape = {{0, 0}, NULL};
    const ov_dimension_t some[3] = {{1, 1}, {-1, -1}, {2, 7}};
    const ov_dimension_t wrong[2] = {{5, 2}, {1, 1}};
    const int64_t fixed[3] = {4, 5, 6}, negative[2] = {-1, 3}, zero[2] = {0, 3};
    TOLD(ov_partial_shape_create(3, some, &shape));
    partial("three", shape);
    ov_partial_shape_free(&shape);
    say("freed: %d", shape.dims == NULL);
    TOLD(ov_partial_shape_create(0, some, &shape));
    TOLD(ov_partial_shape_create(-3, some, &shape));
    TOLD(ov_partial_shape_create(2, wrong, &shape));
    TOLD(ov_partial_shape_create(2, NULL, &shape));
    TOLD(ov_partial_shape_create(3, some, NULL));
    shape.dims = NULL;
    TOLD(ov_partial_shape_create_dynamic((ov_rank_t){-1, -1}, NULL, &shape));
    partial("any rank", shape);
    ov_partial_shape_free(&shape);
    TOLD(ov_partial_shape_create_dynamic((ov_rank_t){3, 3}, some, &shape));
    partial("rank 3", shape);
    ov_partial_shape_free(&shape);
    TOLD(ov_partial_shape_create_dynamic((ov_rank_t){3, 2}, some, &shape));
    TOLD(ov_partial_shape_create_static(3, fixed, &shape));
    partial("static", shape);
    ov_partial_shape_free(&shape);
    TOLD(ov_partial_shape_create_static(2, negative, &shape));
    shape.dims = NULL;
    if (TOLD(ov_partial_shape_create_static(2, zero, &shape)) == OK)
        partial("zero", shape);
    ov_partial_shape_free(NULL);
}

static void shapes(void) {
    ov_shape_t shape = {0, NULL};
    ov_partial_shape_t partial_shape = {{0, 0}, NULL};
    const int64_t dims[4] = {2, 3, 4, 0}, negative[2] = {2, -3};
    TOLD(ov_shape_create(4, dims, &shape));
    TOLD(ov_shape_to_partial_shape(shape, &partial_shape));
    partial("from a shape", partial_shape);
    ov_partial_shape_free(&partial_shape);
    say_shape("four", &shape);
    say("freed: %lld %d", (long long)shape.rank, shape.dims == NULL);
    TOLD(ov_shape_free(&shape));
    TOLD(ov_shape_free(NULL));
    TOLD(ov_shape_create(0, dims, &shape));
    TOLD(ov_shape_create(-1, dims, &shape));
    TOLD(ov_shape_create(2, negative, &shape));
    TOLD(ov_shape_create(2, dims, NULL));
    if (TOLD(ov_shape_create(2, NULL, &shape)) == OK) {
        shape.dims[0] = 8;
        shape.dims[1] = 9;
        say_shape("filled", &shape);
    }
    TOLD(ov_shape_to_partial_shape(shape, &partial_shape));
}

static void layouts(void) {
    static const char *const texts[] = {"NCHW", "[N,C,...]", "N...C", "?", "", "NN", "[N"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ov_layout_t *layout = NULL;
        if (told(texts[i], ov_layout_create(texts[i], &layout)) != OK)
            continue;
        const char *text = ov_layout_to_string(layout);
        say("%s", text);
        ov_free(text);
        ov_layout_free(layout);
    }
    ov_layout_free(NULL);
    TOLD(ov_layout_create(NULL, NULL));
}

int main(void) {
    const ov_dimension_t dimensions[4] = {{1, 1}, {-1, -1}, {1, 5}, {0, 0}};
    for (int i = 0; i < 4; i++)
        say("dimension %d: %d %d", i, ov_dimension_is_dynamic(dimensions[i]), ov_rank_is_dynamic(dimensions[i]));
    partial_shapes();
    shapes();
    layouts();
    return 0;
}
