/*
 * Functions whose arguments depend on the value of one of them.
 */
#ifndef TESTAPI_VARIED_H
#define TESTAPI_VARIED_H

#include <stdarg.h>

#include "testapi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The settings of the one dial that there is, and what follows. */
enum {
    TA_DIAL_RESET = 1,          /* nothing */
    TA_DIAL_SET_LEVEL = 2,      /* int16_t, as an int */
    TA_DIAL_GET_LEVEL = 3,      /* int16_t * */
    TA_DIAL_SET_WIDE = 4,       /* uint64_t */
    TA_DIAL_GET_WIDE = 5,       /* uint64_t * */
    TA_DIAL_SET_RATIO = 6,      /* double */
    TA_DIAL_GET_RATIO = 7,      /* double * */
    TA_DIAL_SET_NAME = 8,       /* const char * */
    TA_DIAL_GET_NAME = 9,       /* const char ** */
    TA_DIAL_SET_POINTS = 10,    /* const ta_point *, four of them */
    TA_DIAL_SUM_POINTS = 11,    /* ta_point * */
    TA_DIAL_SET_DEVICE = 12,    /* ta_device */
    TA_DIAL_GET_DEVICE = 13,    /* ta_device * */
    TA_DIAL_RATIO_OF_FLOAT = 14 /* float, as a double */
};
#define TA_DIAL_HIDDEN (-3) /* int *: the specification does not describe it */
ta_status ta_dial_control(int32_t request, ...);
ta_status ta_dial_control_list(int32_t request, va_list list);
/* Joins so many texts that follow, NULL among them for none. */
ta_status ta_texts_join(char *to, size_t room, size_t count, ...);
/* Nothing is returned: *failed counts the calls that fail. */
void ta_dial_try(uint32_t *failed, int32_t request, ...);

#ifdef __cplusplus
}
#endif

#endif
