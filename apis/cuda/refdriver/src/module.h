/* Modules (code of one context), libraries (code of all contexts) and their functions. */
#ifndef REFDRIVER_MODULE_H
#define REFDRIVER_MODULE_H

#include "driver.h"
#include "ptx.h"

struct CUfunc_st {
    struct object object;
    CUmodule module;
    const struct ptx_code *code;
    int dynamic_shared, carveout;
};

struct CUmod_st {
    struct object object;
    CUcontext context;
    CUmodule sibling; /* of the same context, or of the same library */
    CUlibrary library;
    struct ptx_program *program;
    CUfunction *functions; /* one for each code of the program */
};

struct CUkern_st {
    struct object object;
    CUlibrary library;
    const char *name; /* of the library's first module */
    size_t index;
};

/* The text of PTX in what an application passes; CUDA_SUCCESS gives a copy to be freed. */
CUresult image_text(const void *image, char **text);
/* Reads a whole file, with a zero behind it. */
CUresult image_read(const char *path, char **bytes);

CUresult module_create(CUmodule *module, const char *text, CUcontext context, char message[200]);
void module_end(CUmodule module);
/* Ends all modules of a context, also those of libraries. */
void modules_end(CUcontext context);
CUresult module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *size);

/* The function behind a CUfunction or a CUkernel, in the current context. */
CUresult function_resolve(CUfunction handle, CUfunction *function, CUkernel *kernel);
CUresult kernel_function(CUkernel kernel, CUcontext context, CUfunction *function);
CUresult function_attribute(CUfunction function, CUfunction_attribute attribute, int *value);
CUresult function_set_attribute(CUfunction function, CUfunction_attribute attribute, int value);
CUresult code_parameter(const struct ptx_code *code, size_t index, size_t *offset, size_t *size);

/* The library loses its module of a context that ends. */
void library_forget(CUlibrary library, CUmodule module);

#endif
