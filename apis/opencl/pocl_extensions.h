/* Prototypes of PoCL's own extensions; Debian's OpenCL headers do not have them. */
#ifndef AVIARY_POCL_EXTENSIONS_H
#define AVIARY_POCL_EXTENSIONS_H

#include <CL/cl.h>

/* cl_pocl_content_size: `content_size_buffer` holds, at run time, how many bytes of `buffer` matter. */
extern CL_API_ENTRY cl_int CL_API_CALL clSetContentSizeBufferPoCL(cl_mem buffer, cl_mem content_size_buffer);

#endif
