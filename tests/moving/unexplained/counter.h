/* A library that counts, for the test of functions whose specification does not say what a move does to them. */
#ifndef COUNTER_H
#define COUNTER_H

/* 0: it is done. */
int counter_add(int amount);
/* The sum of all that was added. */
int counter_sum(void);

#endif
