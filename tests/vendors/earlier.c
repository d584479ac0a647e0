/* A version of testapi with two functions. */
#include "testapi.h"

const char *ta_version(void) { return "earlier"; }
ta_status ta_noop(void) { return TA_OK; }
