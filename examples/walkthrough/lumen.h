/* lumen: a made-up image accelerator, as a vendor would ship it. */
#ifndef LUMEN_H
#define LUMEN_H

#include <stddef.h>
#include <stdint.h>

typedef int lumen_result;

#define LUMEN_OK 0
#define LUMEN_BAD_VALUE 1
#define LUMEN_BAD_HANDLE 2
#define LUMEN_NO_MEMORY 3
#define LUMEN_UNSUPPORTED 4
#define LUMEN_LOST 5

typedef struct lumen_device_impl *lumen_device;
typedef struct lumen_image_impl *lumen_image;
typedef void (*lumen_row_function)(uint32_t row, const uint8_t *pixels, size_t bytes, void *context);

lumen_result lumen_open(const char *name, lumen_device *device);
lumen_result lumen_close(lumen_device device);
/* Writes the name, with its terminating zero, into `name`. */
lumen_result lumen_name(lumen_device device, char *name, size_t capacity);
lumen_result lumen_image_create(lumen_device device, uint32_t width, uint32_t height, lumen_image *image);
lumen_result lumen_image_destroy(lumen_image image);
lumen_result lumen_upload(lumen_image image, const void *pixels, size_t bytes);
lumen_result lumen_download(lumen_image image, void *pixels, size_t bytes);
/* Adds `by` to every pixel. */
lumen_result lumen_brighten(lumen_image image, int by);
/* *count: in, room in `bins`; out, how many bins were written. */
lumen_result lumen_histogram(lumen_image image, uint32_t *bins, size_t *count);
/* Calls `function` for every row of the image. */
lumen_result lumen_each_row(lumen_image image, lumen_row_function function, void *context);

#endif
