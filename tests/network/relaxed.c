// Prints what a failing call answers, and the call after it.
#include "testapi.h"

#include <stdio.h>

int main(void) {
    int first = ta_fail(-55);
    printf("%d %d\n", first, (int)ta_noop());
}
