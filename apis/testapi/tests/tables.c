/* Functions reached through pointers; kernels whose arguments the specification asks the library about. */
#include <dlfcn.h>

#include "check.h"
#include "testapi.h"

static void pointers(void) {
    const ta_operations *operations = ta_get_operations();
    CHECK(operations != NULL);
    CHECK_EQ(operations->ta_add(3, 4), 7);
    CHECK_EQ(operations->ta_noop(), TA_OK);
    CHECK_EQ(operations->multiply(-6, 7), -42);
    CHECK(ta_get_operations() == operations);

    int32_t (*square)(int32_t) = (int32_t (*)(int32_t))ta_get_function("ta_extension_square");
    CHECK(square != NULL);
    CHECK_EQ(square ? square(9) : 0, 81);
    int32_t (*add)(int32_t, int32_t) = (int32_t (*)(int32_t, int32_t))ta_get_function("ta_add");
    CHECK(add == ta_add || add(2, 2) == 4);
    CHECK(ta_get_function("ta_nothing") == NULL);
    CHECK(ta_get_function("ta_noop") == NULL); /* the library answers NULL: so must the guest's */
    CHECK(ta_get_function(NULL) == NULL);
    /* Declared, but in no library: absent natively, an error code remotely. */
    ta_status (*absent)(int32_t) = (ta_status (*)(int32_t))dlsym(RTLD_DEFAULT, "ta_absent");
    ta_status status = absent ? absent(1) : TA_ABSENT;
    CHECK_EQ(status, TA_ABSENT);
    /* In no library, but written in the specification. */
    ta_status (*bit_count)(uint64_t, uint32_t *) = (ta_status (*)(uint64_t, uint32_t *))dlsym(RTLD_DEFAULT, "ta_bit_count");
    uint32_t bits = 0;
    status = bit_count ? bit_count(0xf00f, &bits) : (bits = 8, TA_OK);
    CHECK_EQ(status, TA_OK);
    CHECK_EQ(bits, 8);
    status = bit_count ? bit_count(1, NULL) : TA_INVALID_VALUE;
    CHECK_EQ(status, TA_INVALID_VALUE);
    CHECK_EQ(ta_legacy(), TA_UNSUPPORTED);
    CHECK_EQ(ta_legacy_level(), 7);
    CHECK_EQ(ta_element_bytes(3), 8);
    CHECK_EQ(ta_element_bytes(4), 0);
}

static void kernels(void) {
    ta_device device = NULL;
    ta_buffer x = NULL, y = NULL;
    ta_kernel fill = NULL, axpy = NULL;
    uint8_t back[1000];
    uint32_t count = 0;
    CHECK_EQ(ta_device_open("zero", &device), TA_OK);
    CHECK_EQ(ta_buffer_create(device, 1000, &x), TA_OK);
    CHECK_EQ(ta_buffer_create(device, 1000, &y), TA_OK);
    CHECK_EQ(ta_kernel_create(device, "nothing", &fill), TA_INVALID_VALUE);
    CHECK_EQ(ta_kernel_create(device, "fill", &fill), TA_OK);
    CHECK_EQ(ta_kernel_create(device, "axpy", &axpy), TA_OK);
    CHECK_EQ(ta_kernel_argument_count(axpy, &count), TA_OK);
    CHECK_EQ(count, 3);

    const ta_operations *operations = ta_get_operations();
    CHECK_EQ(operations->fill(x, 9), TA_OK);
    CHECK_EQ(operations->fill(NULL, 9), TA_INVALID_BUFFER);
    CHECK_EQ(ta_buffer_read(x, 0, 1000, back), TA_OK);
    CHECK(back[0] == 9 && back[999] == 9);

    uint8_t value = 5;
    int32_t a = 3;
    void *fill_arguments[] = {&x, &value}, *axpy_arguments[] = {&y, &x, &a};
    CHECK_EQ(ta_kernel_launch(fill, fill_arguments), TA_OK);
    value = 200; /* the arguments were taken at the call */
    CHECK_EQ(ta_kernel_launch(axpy, axpy_arguments), TA_OK);
    CHECK_EQ(ta_kernel_launch(axpy, axpy_arguments), TA_OK);
    CHECK_EQ(ta_buffer_read(y, 0, 1000, back), TA_OK);
    CHECK(back[0] == 30 && back[999] == 30);
    CHECK_EQ(ta_kernel_cost(axpy), 2000);
    CHECK_EQ(ta_kernel_destroy(fill), TA_OK);
    CHECK_EQ(ta_kernel_destroy(axpy), TA_OK);
    CHECK_EQ(ta_kernel_destroy(axpy), TA_INVALID_KERNEL);
    CHECK_EQ(ta_buffer_destroy(x), TA_OK);
    CHECK_EQ(ta_buffer_destroy(y), TA_OK);
    CHECK_EQ(ta_device_close(device), TA_OK);
}

int main(void) {
    pointers();
    kernels();
    return check_done();
}
