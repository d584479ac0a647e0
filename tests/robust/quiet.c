/* Had a callback from a thread of the library, and then does nothing until it is told to.
 * Prints "ready SERVER"; after a line of input one call (0 right, 3 lost). */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "testapi.h"

static _Atomic int notified;

static void notify(ta_event event, ta_status status, void *context) {
    (void)event, (void)status, (void)context;
    atomic_store(&notified, 1);
}

int main(void) {
    ta_event event = NULL;
    if (ta_event_create(&event) != TA_OK || ta_event_notify(event, 1, notify, NULL) != TA_OK)
        return 2;
    for (int i = 0; i < 5000 && !atomic_load(&notified); i++)
        usleep(1000);
    if (!atomic_load(&notified))
        return 1;
    printf("ready %d\n", (int)ta_process());
    fflush(stdout);
    if (getchar() == EOF)
        return 2;
    return ta_noop() == TA_OK ? 0 : 3;
}
