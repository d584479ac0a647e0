// So many calls of one kind, for counting what they cost: see callcost.py.
//
//   callcost sync|async CALLS
#include "testapi.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int synchronous = !strcmp(argv[1], "sync");
    long calls = atol(argv[2]);
    // Attaches and opens the lane, by a function that nobody counts.
    uint64_t before = ta_noop_count();
    for (long i = 0; i < calls; i++)
        if ((synchronous ? ta_noop() : ta_noop_async()) != TA_OK) return 1;
    uint64_t executed = ta_noop_count() - before;
    return executed != (synchronous ? 0 : (uint64_t)calls);
}
