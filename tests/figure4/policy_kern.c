/* Named by figure4.lapis, as in the paper. */
#include "../../policies/figure7.c"
