/* A launch made from what an application passes, also for graphs. */
#ifndef REFDRIVER_LAUNCH_H
#define REFDRIVER_LAUNCH_H

#include "operation.h"

/* Fills a launch: resolves the function, copies the parameters, checks the sizes. */
CUresult launch_make(struct launch *launch, CUfunction function, const unsigned grid[3], const unsigned block[3],
                     unsigned shared, void **parameters, void **extra);
/* Blocks of a function that fit on a multiprocessor at the same time. */
int launch_resident_blocks(CUfunction function, unsigned threads, size_t shared);

#endif
