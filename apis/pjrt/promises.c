/* What the program calls in the place of the plug-in's functions, when it has what they wait for. */
#include "pjrt_types.h"
#include "known.h"
#include <aviary/guest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct kept_promise {
    PJRT_Promise *promise;
    struct promised promised;
    PJRT_Error_Code code;
    void *dst;
    size_t size;
    char message[];
};

static void *keep(void *kept) {
    struct kept_promise *it = kept;
    void *dst = it->code ? NULL : it->dst;
    finish_run(it->promised.run, aviary_pjrt_keep(it->promise, it->code, it->message, it->size, dst, dst ? it->promised.bytes : 0));
    aviary_pjrt_drop(it->promise);
    free(it);
    return NULL;
}
/* The plug-in's function does not wait for the data, and neither does this one: what they wait for may be for this thread to do. */
static void future_ready(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) {
    PJRT_Promise *promise = args->callback_data;
    const struct promised *promised = metadata(struct promised, promise);
    size_t size = args->error_message ? args->error_message_size : 0;
    struct kept_promise *kept = promised ? malloc(sizeof *kept + size) : NULL;
    pthread_t thread;
    sigset_t all, before;
    if (!kept)
        return;
    *kept = (struct kept_promise){promise, *promised, args->error_code, args->dst, size};
    memcpy(kept->message, args->error_message ? args->error_message : "", size);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, keep, kept);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        keep(kept);
    else
        pthread_detach(thread);
}
int give_future(PJRT_Event **event, void *promise, int64_t bytes, void *callback) {
    struct promised *promised = metadata(struct promised, (PJRT_Promise *)promise);
    if (promised)
        *promised = (struct promised){(uint64_t)bytes, own_event(event)};
    *(PJRT_Buffer_CopyRawToHostFuture_Callback *)callback = future_ready;
    return 0;
}
static void dependency_ready(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) {
    PJRT_Promise *promise = args->callback_data;
    finish_run(0, aviary_pjrt_depend(promise, args->error_code, args->error_message, args->error_message_size));
    aviary_pjrt_drop(promise);
}
int give_dependency(void *callback) {
    *(PJRT_Buffer_DonateWithControlDependency_Callback *)callback = dependency_ready;
    return 0;
}
