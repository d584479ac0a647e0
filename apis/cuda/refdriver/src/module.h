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
    int clusters[CU_FUNC_ATTRIBUTE_MAX - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH]; /* kept, and changes nothing */
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

/* REFCUDA_MACHINE_CODE=skip: machine code is loaded, and launching a kernel that cannot be run does nothing. */
extern bool machine_code_skipped;

/* Text of PTX, or machine code. */
struct code_image {
    char *bytes; /* owned; a zero is behind them */
    size_t size;
    bool machine;
};
/* The code in what an application passes; CUDA_SUCCESS gives a copy, whose bytes are to be freed. */
CUresult image_open(const void *image, struct code_image *code);
/* Like ptx_parse. */
struct ptx_program *image_program(const struct code_image *code, ptx_allocate allocate, void *environment, char message[200]);
/* A ptx_allocate for who wants to know what is in a program, and not to run it. */
void *allocate_nothing(void *environment, size_t size, bool managed, CUdeviceptr *address);
/* Reads a whole file, with a zero behind it. */
CUresult image_read(const char *path, char **bytes);

CUresult module_create(CUmodule *module, const struct code_image *code, CUcontext context, char message[200]);
void module_end(CUmodule module);
/* Ends all modules of a context, also those of libraries. */
void modules_end(CUcontext context);
CUresult module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *size);
bool module_has_managed(CUmodule module, const char *name);

/* The function behind a CUfunction or a CUkernel, in the current context. */
CUresult function_resolve(CUfunction handle, CUfunction *function, CUkernel *kernel);
CUresult kernel_function(CUkernel kernel, CUcontext context, CUfunction *function);
CUresult function_attribute(CUfunction function, CUfunction_attribute attribute, int *value);
CUresult function_set_attribute(CUfunction function, CUfunction_attribute attribute, int value);
CUresult code_parameter(const struct ptx_code *code, size_t index, size_t *offset, size_t *size);

/* The library loses its module of a context that ends. */
void library_forget(CUlibrary library, CUmodule module);

#endif
