#include "print_buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* Kernels of several streams print at the same time, and several threads wait for them. Taken behind the driver's lock,
 * never before it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct printed *take_first(struct print_buffer *buffer)
{
    struct printed *first = buffer->first;

    if (!first)
        return NULL;
    buffer->first = first->next;
    if (!buffer->first)
        buffer->last = NULL;
    buffer->bytes -= first->length;
    return first;
}

/* The limit cannot be set any more: a kernel that prints was launched. */
void print_add(CUcontext context, bool to_errors, const char *text, size_t length)
{
    struct print_buffer *buffer = &context->printed;
    size_t room = context->limits[CU_LIMIT_PRINTF_FIFO_SIZE];
    struct printed *new = length && length <= room ? malloc(sizeof(*new) + length) : NULL;

    if (!new)
        return;
    *new = (struct printed){.to_errors = to_errors, .length = length};
    memcpy(new->text, text, length);
    pthread_mutex_lock(&lock);
    while (buffer->bytes > room - length)
        free(take_first(buffer));
    if (buffer->last)
        buffer->last->next = new;
    else
        buffer->first = new;
    buffer->last = new;
    buffer->bytes += length;
    pthread_mutex_unlock(&lock);
}

void print_flush(CUcontext context)
{
    struct printed *text;
    bool any = false;

    pthread_mutex_lock(&lock);
    for (; (text = take_first(&context->printed)); any = true) {
        fwrite(text->text, 1, text->length, text->to_errors ? stderr : stdout);
        free(text);
    }
    if (any)
        fflush(stdout);
    pthread_mutex_unlock(&lock);
}
