/* Programs whose kernels may print. A runtime writes their text when the kernel has run, to descriptor 1; an application that leads
 * its descriptor elsewhere meanwhile finds the text there. */
#include "guest.h"
#include <string.h>

/* Set once the text, intermediate language or machine code of a program has this word in it, and never taken back. */
static const char PRINTING[] = "printf";
static int kernels_print;

static int mentions_printing(const void *text, size_t size) {
    return memmem(text, size, PRINTING, sizeof PRINTING - 1) != NULL;
}

int opencl_note_text(cl_uint count, const void *const *texts, const size_t *lengths) {
    if (!texts || __atomic_load_n(&kernels_print, __ATOMIC_RELAXED))
        return 0;
    for (cl_uint i = 0; i < count; i++) {
        if (!texts[i])
            continue;
        size_t size = lengths ? lengths[i] : 0;
        if (mentions_printing(texts[i], size ? size : strlen(texts[i])))
            __atomic_store_n(&kernels_print, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

int opencl_note_il(const void *il, size_t size) {
    if (il && mentions_printing(il, size))
        __atomic_store_n(&kernels_print, 1, __ATOMIC_RELAXED);
    return 0;
}

int opencl_note_code(cl_uint count, const unsigned char *const *codes, const size_t *sizes) {
    if (!codes || !sizes)
        return 0;
    for (cl_uint i = 0; i < count; i++)
        if (codes[i] && mentions_printing(codes[i], sizes[i]))
            __atomic_store_n(&kernels_print, 1, __ATOMIC_RELAXED);
    return 0;
}

int opencl_follow_output(void) {
    if (__atomic_load_n(&kernels_print, __ATOMIC_RELAXED))
        aviary_follow_output();
    return 0;
}
