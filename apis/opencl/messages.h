/* Messages between the two sides of this API that are no functions of OpenCL. */
#ifndef AVIARY_OPENCL_MESSAGES_H
#define AVIARY_OPENCL_MESSAGES_H
#include <CL/cl.h>

/* Limits of what one program includes: files and folders, and bytes of their names and contents together. */
#define OPENCL_INCLUDED_FILES 1024
#define OPENCL_INCLUDED_BYTES (16u << 20)
/* In the place of a file's size: the name is that of a folder. */
#define OPENCL_INCLUDED_FOLDER UINT64_MAX

/* Newer than the headers here (cl_khr_spirv_queries): lists of texts. */
#define OPENCL_DEVICE_SPIRV_EXTENDED_INSTRUCTION_SETS 0x12B9
#define OPENCL_DEVICE_SPIRV_EXTENSIONS 0x12BA

/* The files that the sources of this program may include when it is built next, as the guest has them. The text is a list: a name
 * (absolute, with its NUL), 8 bytes of its size, and so many bytes of content; the first name is the application's working folder. */
cl_int aviaryPlaceIncludes(cl_program program, const char *files, size_t size);

#endif
