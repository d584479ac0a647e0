/* An application: it knows nothing of Aviary. */
#include <stdio.h>
#include <stdlib.h>

#include "lumen.h"

static void check(lumen_result result, const char *what) {
    if (result == LUMEN_OK)
        return;
    fflush(stdout);
    fprintf(stderr, "%s failed: %d\n", what, result);
    exit(1);
}

static void sum_row(uint32_t row, const uint8_t *pixels, size_t bytes, void *context) {
    unsigned sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum += pixels[i];
    printf("row %u: %u\n", row, sum);
    ++*(int *)context;
}

int main(void) {
    lumen_device device;
    lumen_image image;
    char name[32];
    uint8_t pixels[4 * 3];
    uint32_t bins[4];
    size_t count = 4;
    int rows = 0;

    check(lumen_open("lumen0", &device), "open");
    check(lumen_name(device, name, sizeof name), "name");
    printf("device %s\n", name);
    check(lumen_image_create(device, 4, 3, &image), "image_create");
    for (int i = 0; i < 12; i++)
        pixels[i] = (uint8_t)(i * 20);
    check(lumen_upload(image, pixels, sizeof pixels), "upload");
    check(lumen_brighten(image, 5), "brighten");
    check(lumen_download(image, pixels, sizeof pixels), "download");
    printf("first %u last %u\n", pixels[0], pixels[11]);
    check(lumen_histogram(image, bins, &count), "histogram");
    printf("histogram %u %u %u %u\n", bins[0], bins[1], bins[2], bins[3]);
    check(lumen_each_row(image, sum_row, &rows), "each_row");
    printf("%d rows\n", rows);
    check(lumen_image_destroy(image), "image_destroy");
    check(lumen_close(device), "close");
    return 0;
}
