/* The functions of the runtime that only C can define; compiled into every guest library and server module. */
#include <aviary.h>
#include <stdarg.h>
#include <stdio.h>

void aviary_log_text(const char *text);

/* Rust cannot take variable arguments: the text crosses formatted. */
void aviary_log(const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    aviary_log_text(text);
}

#ifdef AVIARY_SERVER
void aviary_preload_utility(void);

/* Rust has no weak symbols: whether the specification defines the function is asked here. */
void aviary_preload_utility(void) {
    if (aviary_preload)
        aviary_preload();
}

typedef void (*aviary_start_function)(void);
aviary_start_function aviary_start_utility(void);

/* NULL: the specification defines none. */
aviary_start_function aviary_start_utility(void) {
    return aviary_start;
}

typedef void (*aviary_devices_function)(void (*)(void *, const struct aviary_device *), void *);
aviary_devices_function aviary_devices_utility(void);

/* NULL: the specification defines none. */
aviary_devices_function aviary_devices_utility(void) {
    return aviary_devices;
}

typedef void (*aviary_holders_function)(void (*)(void *, const struct aviary_holder *), void *);
aviary_holders_function aviary_holders_utility(void);

/* NULL: the specification defines none. */
aviary_holders_function aviary_holders_utility(void) {
    return aviary_holders;
}

aviary_holders_function aviary_contexts_utility(void);

/* NULL: the specification defines none. */
aviary_holders_function aviary_contexts_utility(void) {
    return aviary_contexts;
}
#endif
