/* The functions that a compiler calls for printf and assert in kernels. The text is made when a kernel prints, and kept
 * by its context until the host waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"
#include "print_buffer.h"
#include "ptx_run.h"

/* Most bytes that a device prints of one call, besides its format. */
enum { MOST_ARGUMENTS = 32, WIDEST = 1 << 20 };

/* %[flags][width][.precision][size]type */
struct conversion {
    char flags[6];
    bool width_is_argument, precision_is_argument;
    int width, precision; /* -1: none */
    const char *size;
    char type;
};

/* The array that the compiler packs: each argument is aligned to its own size. */
struct arguments {
    struct run *run;
    struct thread *thread;
    uint64_t address, offset;
    int count;
};

static bool is_integer(char type) { return type && strchr("diouxX", type); }

static const char *parse_number(const char *text, int *number)
{
    for (*number = 0; *text >= '0' && *text <= '9'; text++) {
        *number = *number * 10 + (*text - '0');
        *number = *number < WIDEST ? *number : WIDEST;
    }
    return text;
}

/* From behind the percent sign to behind the type; NULL where it is none. */
static const char *parse_conversion(const char *text, struct conversion *conversion)
{
    static const char *const sizes[] = {"hh", "h", "ll", "l", ""};

    *conversion = (struct conversion){.width = 0, .precision = -1};
    for (size_t count = 0; *text && strchr("#0 +-", *text); text++)
        if (!strchr(conversion->flags, *text))
            conversion->flags[count++] = *text;
    conversion->width_is_argument = *text == '*';
    text = *text == '*' ? text + 1 : parse_number(text, &conversion->width);
    if (*text == '.') {
        conversion->precision_is_argument = *++text == '*';
        text = *text == '*' ? text + 1 : parse_number(text, &conversion->precision);
    }
    for (size_t i = 0; !conversion->size; i++)
        if (strncmp(text, sizes[i], strlen(sizes[i])) == 0)
            conversion->size = sizes[i];
    conversion->type = *(text += strlen(conversion->size));
    return conversion->type && strchr("%cdiouxXpeEfgGaAs", conversion->type) ? text + 1 : NULL;
}

/* A wrong address sets the fault of the run, which ends it; what is printed is lost then. */
static uint64_t next_argument(struct arguments *arguments, size_t size)
{
    uint64_t value = 0;
    char *bytes;

    arguments->offset = (arguments->offset + size - 1) / size * size;
    bytes = run_memory(arguments->run, arguments->thread, SPACE_GENERIC, arguments->address + arguments->offset, size);
    if (bytes)
        memcpy(&value, bytes, size);
    arguments->offset += size;
    arguments->count++;
    return value;
}

static int next_number(struct arguments *arguments)
{
    int number = (int)next_argument(arguments, 4);

    return number > WIDEST ? WIDEST : number < -WIDEST ? -WIDEST : number;
}

/* A string of the kernel's, at most so long; to be freed. NULL, and a fault, where it leaves the memory. */
static char *read_string(struct run *run, struct thread *thread, uint64_t address, size_t most)
{
    char *text = NULL;
    size_t length = 0;
    FILE *copy = open_memstream(&text, &length);

    if (!copy) {
        run->fault = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
        return NULL;
    }
    for (const char *at; most-- && (at = run_memory(run, thread, SPACE_GENERIC, address++, 1)) && *at;)
        putc(*at, copy);
    fclose(copy);
    if (run->fault == CUDA_SUCCESS)
        return text;
    free(text);
    return NULL;
}

static size_t most_text(const struct run *run)
{
    return run->launch->function->module->context->limits[CU_LIMIT_PRINTF_FIFO_SIZE];
}

static int arguments_of(const struct conversion *conversion)
{
    return conversion->width_is_argument + conversion->precision_is_argument + (conversion->type != '%');
}

static void print_string(FILE *out, const char *form, int width, int precision, struct arguments *arguments)
{
    uint64_t address = next_argument(arguments, 8);
    size_t most = precision >= 0 ? (size_t)precision : most_text(arguments->run);
    char *string = address && arguments->run->fault == CUDA_SUCCESS ? read_string(arguments->run, arguments->thread, address, most) : NULL;

    fprintf(out, form, width, precision, string);
    free(string);
}

/* As the C library does; a precision below zero is none. */
static void print_conversion(FILE *out, const struct conversion *conversion, struct arguments *arguments)
{
    int width = conversion->width_is_argument ? next_number(arguments) : conversion->width;
    int precision = conversion->precision_is_argument ? next_number(arguments) : conversion->precision;
    bool wide = conversion->size[0] == 'l';
    double number;
    uint64_t value;
    char form[20];

    snprintf(form, sizeof(form), "%%%s*.*%s%c", conversion->flags, !is_integer(conversion->type) ? "" : wide ? "ll" : conversion->size,
             conversion->type);
    switch (conversion->type) {
    case '%':
        putc('%', out);
        break;
    case 's':
        print_string(out, form, width, precision, arguments);
        break;
    case 'c':
        fprintf(out, form, width, precision, (int)next_argument(arguments, 4));
        break;
    case 'p':
        fprintf(out, form, width, precision, (void *)(uintptr_t)next_argument(arguments, 8));
        break;
    case 'd': case 'i': case 'o': case 'u': case 'x': case 'X':
        value = next_argument(arguments, wide ? 8 : 4);
        if (wide)
            fprintf(out, form, width, precision, (long long)value);
        else
            fprintf(out, form, width, precision, (int)value);
        break;
    default:
        value = next_argument(arguments, 8);
        memcpy(&number, &value, sizeof(number));
        fprintf(out, form, width, precision, number);
    }
}

/* Text that is no conversion, or would need one argument more than there can be, is printed as it is. */
static void print_format(FILE *out, const char *format, struct arguments *arguments)
{
    while (*format && arguments->run->fault == CUDA_SUCCESS) {
        struct conversion conversion;
        const char *end = *format == '%' ? parse_conversion(format + 1, &conversion) : NULL;

        if (end && arguments->count + arguments_of(&conversion) <= MOST_ARGUMENTS) {
            print_conversion(out, &conversion, arguments);
            format = end;
        } else {
            putc(*format++, out);
        }
    }
}

/* A parameter of a call: the compiler puts it into memory of the thread's own. */
static uint64_t parameter(struct run *run, struct thread *thread, const struct ptx_operand *operand, size_t size)
{
    uint64_t value = 0;
    char *bytes = run->fault == CUDA_SUCCESS ? run_memory(run, thread, SPACE_PARAM, operand->value, size) : NULL;

    if (bytes)
        memcpy(&value, bytes, size);
    return value;
}

/* The number of arguments, or -1 without a format. */
static int print(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    uint64_t address = parameter(run, thread, &instruction->operands[0], 8);
    struct arguments arguments = {.run = run, .thread = thread, .address = parameter(run, thread, &instruction->operands[1], 8)};
    size_t length = 0;
    char *format, *text = NULL;
    FILE *out;

    if (run->fault != CUDA_SUCCESS || !address)
        return -1;
    format = read_string(run, thread, address, most_text(run));
    out = format ? open_memstream(&text, &length) : NULL;
    if (out) {
        print_format(out, format, &arguments);
        fclose(out);
        if (run->fault == CUDA_SUCCESS)
            print_add(run->launch->function->module->context, false, text, length);
    }
    free(text);
    free(format);
    return arguments.count;
}

/* Ends the kernel at the first thread whose assertion does not hold; on a device the others print, too. */
static void fail_assertion(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    enum { MESSAGE, FILE_NAME, FUNCTION, TEXTS };
    static const int operands[TEXTS] = {0, 1, 3};
    int line = (int)parameter(run, thread, &instruction->operands[2], 4), length;
    char *texts[TEXTS] = {NULL}, *said = NULL;

    for (int i = 0; i < TEXTS && run->fault == CUDA_SUCCESS; i++)
        texts[i] = read_string(run, thread, parameter(run, thread, &instruction->operands[operands[i]], 8), most_text(run));
    if (run->fault == CUDA_SUCCESS) {
        length = asprintf(&said, "%s:%d: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", texts[FILE_NAME], line,
                          texts[FUNCTION], run->block[0], run->block[1], run->block[2], thread->index[0], thread->index[1],
                          thread->index[2], texts[MESSAGE]);
        if (length > 0) {
            print_add(run->launch->function->module->context, true, said, (size_t)length);
            free(said);
        }
        run->fault = CUDA_ERROR_ASSERT;
    }
    for (int i = 0; i < TEXTS; i++)
        free(texts[i]);
}

void run_call(struct run *run, struct thread *thread, const struct ptx_instruction *instruction)
{
    const struct ptx_operand *result = &instruction->operands[2];
    int printed;
    char *bytes;

    if (instruction->action == ACTION_ASSERT) {
        fail_assertion(run, thread, instruction);
        return;
    }
    printed = print(run, thread, instruction);
    bytes = run->fault == CUDA_SUCCESS && result->kind != OPERAND_NONE ? run_memory(run, thread, SPACE_PARAM, result->value, 4) : NULL;
    if (bytes)
        memcpy(bytes, &printed, sizeof(printed));
}
