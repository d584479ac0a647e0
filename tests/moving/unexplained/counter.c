#include "counter.h"

static int sum;

int counter_add(int amount) {
    sum += amount;
    return 0;
}

int counter_sum(void) {
    return sum;
}
