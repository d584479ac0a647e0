#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call.h"
#include "driver.h"
#include "errors.h"
#include "memory.h"
#include "module.h"

bool trace_wanted;

static int trace_file = -1;

__attribute__((constructor)) static void open_trace(void)
{
    const char *path = getenv("REFCUDA_TRACE");

    if (!path || !*path)
        return;
    trace_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (trace_file < 0)
        fprintf(stderr, "refdriver: REFCUDA_TRACE: cannot write %s: %s\n", path, strerror(errno));
    trace_wanted = trace_file >= 0;
}

void trace_call(CUresult result, const char *format, ...)
{
    char line[8192]; /* names made of templates are long */
    const char *error = error_name(result);
    va_list arguments;
    int size;

    va_start(arguments, format);
    size = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (size > (int)sizeof(line) - 64)
        size = (int)sizeof(line) - 64;
    size += snprintf(line + size, sizeof(line) - (size_t)size, " -> %s\n", error ? error : "?");
    /* One write for a line: lines of several threads and processes stay whole. A full disk loses the trace,
     * not the run. */
    if (write(trace_file, line, (size_t)size) < 0)
        trace_wanted = false;
}

const char *trace_kernel(CUfunction handle)
{
    CUfunction function = object_check(handle, KIND_FUNCTION);
    CUkernel kernel = object_check(handle, KIND_KERNEL);

    return function ? function->code->name : kernel ? kernel->name : "?";
}

const char *trace_stream(CUstream stream)
{
    if (!stream)
        return "default";
    return stream == CU_STREAM_LEGACY ? "legacy" : stream == CU_STREAM_PER_THREAD ? "per-thread" : "own";
}

const char *trace_attributes(const CUlaunchConfig *config)
{
    static _Thread_local char text[256];
    int size = 0;

    text[0] = 0;
    for (unsigned i = 0; config && config->attrs && i < config->numAttrs && size < (int)sizeof(text) - 48; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        const char *comma = size ? "," : "";

        switch (attribute->id) {
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
            size += snprintf(text + size, sizeof(text) - (size_t)size, "%s%d:%ux%ux%u", comma, attribute->id, attribute->value.clusterDim.x,
                             attribute->value.clusterDim.y, attribute->value.clusterDim.z);
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            size += snprintf(text + size, sizeof(text) - (size_t)size, "%s%d:%d", comma, attribute->id, attribute->value.cooperative);
            break;
        default:
            size += snprintf(text + size, sizeof(text) - (size_t)size, "%s%d", comma, attribute->id);
        }
    }
    return text;
}

/* --- parameters --- */

struct text {
    char *to;
    size_t room;
};

static void put(struct text *text, char first, char second)
{
    if (text->room < 3)
        return;
    *text->to++ = first;
    *text->to++ = second;
    *text->to = 0;
    text->room -= 2;
}

/* Two digits for four bytes: enough to notice a difference, and short. */
static void put_digest(struct text *text, uint32_t word)
{
    static const char digits[] = "0123456789abcdef";
    uint32_t sum = word * 0x9e3779b1U >> 24; /* Fibonacci hashing */

    put(text, digits[sum >> 4], digits[sum & 15]);
}

/* Where a process has its code, heap and stacks: padding is full of such addresses, and a kernel has no use for them. */
static bool is_of_process(uint64_t word) { return word >> 40 >= 0x55 && word >> 40 < 0x80; }

static void put_parameter(struct text *text, const char *bytes, size_t size)
{
    enum { ALIGNMENT = 512 }; /* of any allocation, here and where Aviary places them */

    while (size) {
        uint64_t word = 0;
        size_t part = size < sizeof(word) ? size : sizeof(word);

        memcpy(&word, bytes, part);
        if (part == sizeof(word) && memory_is_device_range(word))
            word %= ALIGNMENT;
        bytes += part;
        size -= part;
        if (is_of_process(word)) {
            put(text, '~', '~');
            put(text, '~', '~');
            continue;
        }
        put_digest(text, (uint32_t)word);
        if (part > sizeof(uint32_t))
            put_digest(text, (uint32_t)(word >> 32));
    }
}

const char *trace_parameters(CUfunction handle, void **parameters, void **extra)
{
    static _Thread_local char digests[4096];
    struct text text = {digests, sizeof(digests)};
    CUfunction function;
    CUkernel kernel;
    const char *packed = NULL;
    size_t packed_size = 0;

    digests[0] = 0;
    if (function_resolve(handle, &function, &kernel) != CUDA_SUCCESS)
        return digests;
    if (!parameters && extra) {
        for (; *extra != CU_LAUNCH_PARAM_END; extra += 2)
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
                packed = extra[1];
            else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
                packed_size = *(const size_t *)extra[1];
    }
    for (size_t i = 0; i < function->code->parameter_count && (parameters || packed); i++) {
        const struct ptx_parameter *parameter = &function->code->parameters[i];
        size_t size = parameter->size;
        /* The last ones may be missing. */
        if (!parameters && parameter->offset + size > packed_size)
            size = parameter->offset < packed_size ? packed_size - parameter->offset : 0;
        put_parameter(&text, parameters ? parameters[i] : packed + parameter->offset, size);
    }
    return digests;
}
