/* A program with a library of its own, to see that both arrive in a guest. */
#include <stdio.h>

int answer(void);

int main(void)
{
	printf("the answer is %d\n", answer());
	return 0;
}
