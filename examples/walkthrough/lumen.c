/* The vendor's library. In real life nobody has its source. */
#include "lumen.h"

#include <stdlib.h>
#include <string.h>

struct lumen_device_impl { char name[32]; };
struct lumen_image_impl { uint32_t width, height; uint8_t pixels[]; };

lumen_result lumen_open(const char *name, lumen_device *device) {
    if (!name || !device)
        return LUMEN_BAD_VALUE;
    lumen_device d = calloc(1, sizeof *d);
    if (!d)
        return LUMEN_NO_MEMORY;
    strncpy(d->name, name, sizeof d->name - 1);
    *device = d;
    return LUMEN_OK;
}

lumen_result lumen_close(lumen_device device) {
    free(device);
    return device ? LUMEN_OK : LUMEN_BAD_HANDLE;
}

lumen_result lumen_name(lumen_device device, char *name, size_t capacity) {
    if (!device)
        return LUMEN_BAD_HANDLE;
    if (!name || strlen(device->name) >= capacity)
        return LUMEN_BAD_VALUE;
    strcpy(name, device->name);
    return LUMEN_OK;
}

lumen_result lumen_image_create(lumen_device device, uint32_t width, uint32_t height, lumen_image *image) {
    if (!device)
        return LUMEN_BAD_HANDLE;
    if (!width || !height || !image)
        return LUMEN_BAD_VALUE;
    lumen_image i = calloc(1, sizeof *i + (size_t)width * height);
    if (!i)
        return LUMEN_NO_MEMORY;
    i->width = width;
    i->height = height;
    *image = i;
    return LUMEN_OK;
}

lumen_result lumen_image_destroy(lumen_image image) {
    free(image);
    return image ? LUMEN_OK : LUMEN_BAD_HANDLE;
}

static size_t size_of(lumen_image image) {
    return (size_t)image->width * image->height;
}

lumen_result lumen_upload(lumen_image image, const void *pixels, size_t bytes) {
    if (!image)
        return LUMEN_BAD_HANDLE;
    if (!pixels || bytes != size_of(image))
        return LUMEN_BAD_VALUE;
    memcpy(image->pixels, pixels, bytes);
    return LUMEN_OK;
}

lumen_result lumen_download(lumen_image image, void *pixels, size_t bytes) {
    if (!image)
        return LUMEN_BAD_HANDLE;
    if (!pixels || bytes != size_of(image))
        return LUMEN_BAD_VALUE;
    memcpy(pixels, image->pixels, bytes);
    return LUMEN_OK;
}

lumen_result lumen_brighten(lumen_image image, int by) {
    if (!image)
        return LUMEN_BAD_HANDLE;
    for (size_t i = 0; i < size_of(image); i++)
        image->pixels[i] = (uint8_t)(image->pixels[i] + by);
    return LUMEN_OK;
}

lumen_result lumen_histogram(lumen_image image, uint32_t *bins, size_t *count) {
    if (!image)
        return LUMEN_BAD_HANDLE;
    if (!bins || !count || !*count)
        return LUMEN_BAD_VALUE;
    size_t n = *count < 256 ? *count : 256;
    memset(bins, 0, n * sizeof *bins);
    for (size_t i = 0; i < size_of(image); i++)
        bins[image->pixels[i] * n / 256]++;
    *count = n;
    return LUMEN_OK;
}

lumen_result lumen_each_row(lumen_image image, lumen_row_function function, void *context) {
    if (!image)
        return LUMEN_BAD_HANDLE;
    if (!function)
        return LUMEN_BAD_VALUE;
    for (uint32_t y = 0; y < image->height; y++)
        function(y, image->pixels + (size_t)y * image->width, image->width, context);
    return LUMEN_OK;
}
