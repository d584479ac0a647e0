/* The runtime as utility code of a LAPIS specification may use it, on the side that is being compiled. */
#ifndef AVIARY_H
#define AVIARY_H

#include <aviary/common.h>
#ifdef AVIARY_GUEST
#include <aviary/guest.h>
#endif
#ifdef AVIARY_SERVER
#include <aviary/server.h>
#endif

#endif
