/* The monitor's output: port 0xe9 of the emulator, which ends on standard output. */
#include <stdarg.h>

#include "monitor.h"

static void out(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

static void put(char c) { out(0xe9, (uint8_t)c); }

static void put_number(uint64_t value, unsigned base)
{
    char digits[24];
    int count = 0;
    do {
        digits[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    while (count) put(digits[--count]);
}

/* Knows %s, %d and %u (of 32 bits), %lu and %lx. */
static void print_list(const char *format, va_list list)
{
    for (; *format; format++) {
        if (*format != '%') {
            put(*format);
            continue;
        }
        format++;
        if (*format == 's') {
            for (const char *text = va_arg(list, const char *); *text; text++) put(*text);
        } else if (*format == 'l') {
            format++;
            put_number(va_arg(list, uint64_t), *format == 'x' ? 16 : 10);
        } else {
            put_number(va_arg(list, unsigned), 10);
        }
    }
}

void print(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print_list(format, list);
    va_end(list);
}

void check(bool good, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    print("%s", good ? "ok   " : "FAIL ");
    print_list(format, list);
    print("\n");
    va_end(list);
}

void power_off(void)
{
    for (const char *word = "Shutdown"; *word; word++) out(0x8900, (uint8_t)*word);
    for (;;) __asm__ volatile("hlt");
}

void panic(const char *what, uint64_t value)
{
    print("FAIL monitor: %s (%lx)\n", what, value);
    power_off();
}

/* Called by the stubs of the monitor's own exceptions. */
void host_panic(uint64_t stub, uint64_t first, uint64_t second)
{
    extern char host_vectors[];
    print("FAIL monitor: exception %lu; stack %lx %lx\n", (stub - (uint64_t)host_vectors) / 8, first, second);
    power_off();
}
