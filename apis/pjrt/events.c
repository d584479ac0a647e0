/* Events, which are objects of the guest's own, and what it knows of buffers without asking.
 *
 * A run is something that is over once, with or without an error: an execution on a device, the contents of a buffer. Buffers name it
 * by its number, events show it. It is in the table while it is pending, and as long as it is known to have failed: a run that is not
 * there has succeeded. The API server tells of it in `aviary_pjrt_completed`, for which a thread waits that starts with the first run;
 * that thread also calls the program's callbacks, as a plug-in's threads do. */
#include "pjrt_types.h"
#include "known.h"
#include <aviary/guest.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 256, CAUSES = 8, BATCH = 64, TEXTS = 8192, MOST_FAILED = 1024 };

struct waiter {
    struct waiter *next;
    PJRT_Event_OnReadyCallback callback;
    void *user_arg;
    /* What it is told. */
    PJRT_Error *error;
};
struct run {
    uint64_t number;
    struct run *next;
    /* The table's, and those of events. */
    uint32_t references;
    int32_t state;
    /* The program says itself when it is over. */
    int32_t own;
    PJRT_Error_Code code;
    char *text;
    struct waiter *first, **last;
    /* Runs that made its inputs and were not over: why it may be refused. */
    uint64_t causes[CAUSES];
};
struct event {
    struct run *run;
    uint32_t generation, next_free;
    int32_t used;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct run *table[BUCKETS];
static uint64_t last_number, failed[MOST_FAILED], failures;
static struct event *events;
static uint32_t event_count, free_events;
static int started, gone;

/* --- the table; with the lock */

static struct run *find(uint64_t number) {
    struct run *run = number ? table[number % BUCKETS] : NULL;
    while (run && run->number != number)
        run = run->next;
    return run;
}
static void drop(struct run *run) {
    if (run && --run->references == 0) {
        free(run->text);
        free(run);
    }
}
static void leave_table(struct run *run) {
    struct run **at = &table[run->number % BUCKETS];
    while (*at && *at != run)
        at = &(*at)->next;
    if (*at) {
        *at = run->next;
        drop(run);
    }
}
/* The run is over. Its waiters are moved to `called`. */
static void complete(struct run *run, PJRT_Error_Code code, const char *text, struct waiter ***called) {
    run->state = code ? AVIARY_PJRT_FAILED : AVIARY_PJRT_DONE;
    if (code) {
        run->code = code;
        run->text = strdup(text);
        uint64_t *oldest = &failed[failures++ % MOST_FAILED];
        struct run *forgotten = find(*oldest);
        if (forgotten)
            leave_table(forgotten);
        *oldest = run->number;
    }
    for (struct waiter *waiter = run->first; waiter; waiter = waiter->next)
        waiter->error = code ? error_of(code, text) : NULL;
    if (run->first) {
        **called = run->first;
        *called = run->last;
    }
    run->first = NULL;
    run->last = &run->first;
    if (!code)
        leave_table(run);
}
/* A refused call has the error of an input that was never made, if that is why. */
static void complete_refused(struct run *run, struct waiter ***called) {
    const struct run *cause = NULL;
    for (int i = 0; i < CAUSES && !(cause && cause->state == AVIARY_PJRT_FAILED); i++)
        cause = find(run->causes[i]);
    if (cause && cause->state == AVIARY_PJRT_FAILED)
        complete(run, cause->code, cause->text ? cause->text : "", called);
    else
        complete(run, PJRT_Error_Code_RESOURCE_EXHAUSTED,
                 "Aviary refused the execution: a limit of the tenant, or a buffer that does not exist", called);
}
static void call(struct waiter *waiter) {
    while (waiter) {
        struct waiter *next = waiter->next;
        waiter->callback(waiter->error, waiter->user_arg);
        free(waiter);
        waiter = next;
    }
}

/* --- the thread that hears of runs */

static void lose_all(void) {
    struct waiter *called = NULL, **end = &called;
    pthread_mutex_lock(&lock);
    gone = 1;
    for (int i = 0; i < BUCKETS; i++)
        for (struct run *run = table[i]; run; run = run->next)
            if (run->state == AVIARY_PJRT_PENDING && !run->own)
                complete(run, PJRT_Error_Code_UNAVAILABLE, "the API server is gone", &end);
    *end = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    call(called);
}
static void *hear(void *unused) {
    struct aviary_pjrt_done done[BATCH];
    char texts[TEXTS];
    size_t count, used;
    while (count = 0, used = 0, aviary_pjrt_completed(done, BATCH, &count, texts, TEXTS, &used) == 0) {
        struct waiter *called = NULL, **end = &called;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < count; i++) {
            struct run *run = find(done[i].run);
            if (!run || run->state == AVIARY_PJRT_FAILED)
                continue;
            if (done[i].code == AVIARY_PJRT_REFUSED)
                complete_refused(run, &end);
            else
                complete(run, (PJRT_Error_Code)done[i].code, done[i].text < used ? texts + done[i].text : "", &end);
        }
        *end = NULL;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        call(called);
    }
    lose_all();
    return unused;
}
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
/* A child has neither the thread nor its parent's objects. */
static void in_child(void) {
    started = 0;
    gone = 0;
    memset(table, 0, sizeof table);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
}
/* With the lock. The thread takes no signals of the program's. */
static int start(void) {
    static int prepared;
    sigset_t all, before;
    pthread_t thread;
    if (started)
        return 1;
    if (!prepared)
        prepared = pthread_atfork(before_fork, after_fork, in_child) == 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (prepared && pthread_create(&thread, NULL, hear, NULL) == 0) {
        pthread_detach(thread);
        started = 1;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* --- runs and events, for the files of this side */

/* With the lock. NULL: there is no memory. */
static struct run *new_run(uint64_t number) {
    struct run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    run->number = number;
    run->references = 1;
    run->last = &run->first;
    run->next = table[number % BUCKETS];
    table[number % BUCKETS] = run;
    return run;
}
uint64_t begin_runs(uint64_t count, const uint64_t *causes, uint64_t cause_count) {
    pthread_mutex_lock(&lock);
    uint64_t first = last_number + 1, made = 0;
    last_number += count;
    if (!gone && start())
        for (struct run *run; made < count && (run = new_run(first + made)) != NULL; made++)
            for (uint64_t i = 0, n = 0; i < cause_count && n < CAUSES; i++)
                if (find(causes[i]) && !(n && run->causes[n - 1] == causes[i]))
                    run->causes[n++] = causes[i];
    pthread_mutex_unlock(&lock);
    if (made == count)
        return first;
    end_runs(first, made);
    return 0;
}
void end_runs(uint64_t first, uint64_t count) {
    struct waiter *called = NULL, **end = &called;
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < count; i++) {
        struct run *run = find(first + i);
        if (run && run->state == AVIARY_PJRT_PENDING)
            complete(run, PJRT_Error_Code_UNAVAILABLE, "the call was not sent", &end);
    }
    *end = NULL;
    pthread_mutex_unlock(&lock);
    call(called);
}
int is_gone(void) { return __atomic_load_n(&gone, __ATOMIC_RELAXED); }

/* With the lock. An event that shows the run; without one it is ready. NULL: there is no memory. */
static PJRT_Event *show(struct run *run) {
    uint32_t at = free_events;
    if (at == 0) {
        uint32_t more = event_count ? 2 * event_count : 64;
        struct event *grown = more < 1u << 24 ? realloc(events, more * sizeof *events) : NULL;
        if (!grown)
            return NULL;
        events = grown;
        memset(events + event_count, 0, (more - event_count) * sizeof *events);
        for (uint32_t i = more; i-- > (event_count ? event_count : 1);) {
            events[i].next_free = free_events;
            free_events = i;
        }
        event_count = more;
        at = free_events;
    }
    struct event *event = &events[at];
    free_events = event->next_free;
    event->run = run;
    event->used = 1;
    if (run)
        run->references++;
    return (PJRT_Event *)((uintptr_t)0x0e7e << 48 | (uintptr_t)(event->generation & 0xffffff) << 24 | at);
}
/* With the lock. NULL: it is none. */
static struct event *look(const PJRT_Event *event) {
    uintptr_t value = (uintptr_t)event, at = value & 0xffffff;
    if (value >> 48 != 0x0e7e || at >= event_count || !events[at].used ||
        (events[at].generation & 0xffffff) != (value >> 24 & 0xffffff))
        return NULL;
    return &events[at];
}
PJRT_Event *event_of(uint64_t number) {
    pthread_mutex_lock(&lock);
    PJRT_Event *event = show(find(number));
    pthread_mutex_unlock(&lock);
    return event;
}
/* The run that an event shows, which the caller drops; 0: it is no event. */
static int hold(const PJRT_Event *event, struct run **run) {
    pthread_mutex_lock(&lock);
    struct event *found = look(event);
    *run = found ? found->run : NULL;
    if (*run)
        (*run)->references++;
    pthread_mutex_unlock(&lock);
    return found != NULL;
}
static void let_go(struct run *run) {
    pthread_mutex_lock(&lock);
    drop(run);
    pthread_mutex_unlock(&lock);
}
static int state_of(struct run *run) { return run ? __atomic_load_n(&run->state, __ATOMIC_ACQUIRE) : AVIARY_PJRT_DONE; }
/* How a run is by now. An answer that it has failed comes before the reason does. */
static int ask(struct run *run, int wait) {
    int state = state_of(run);
    if (state != AVIARY_PJRT_PENDING || run->own || aviary_pjrt_ask(run->number, wait, &state) != 0)
        return state_of(run);
    if (state == AVIARY_PJRT_DONE) {
        pthread_mutex_lock(&lock);
        if (run->state == AVIARY_PJRT_PENDING)
            __atomic_store_n(&run->state, AVIARY_PJRT_DONE, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
    }
    return state_of(run);
}
/* The error of a run, when it is over. */
static PJRT_Error *outcome(struct run *run) {
    if (ask(run, 1) == AVIARY_PJRT_PENDING) {
        pthread_mutex_lock(&lock);
        while (run->state == AVIARY_PJRT_PENDING)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
    return state_of(run) == AVIARY_PJRT_FAILED ? error_of(run->code, run->text ? run->text : "") : NULL;
}

/* --- the functions of the table */

int ready_event(PJRT_Event **event) {
    *event = event_of(0);
    return 0;
}
PJRT_Error *event_destroy(PJRT_Event *event) {
    pthread_mutex_lock(&lock);
    struct event *found = look(event);
    if (found) {
        drop(found->run);
        *found = (struct event){NULL, found->generation + 1, free_events, 0};
        free_events = (uint32_t)(found - events);
    }
    pthread_mutex_unlock(&lock);
    return found ? NULL : made(0);
}
PJRT_Error *event_is_ready(PJRT_Event *event, _Bool *is_ready) {
    struct run *run;
    if (!hold(event, &run))
        return made(0);
    *is_ready = ask(run, 0) != AVIARY_PJRT_PENDING;
    let_go(run);
    return NULL;
}
PJRT_Error *event_error(PJRT_Event *event) {
    struct run *run;
    if (!hold(event, &run))
        return made(0);
    PJRT_Error *error = outcome(run);
    let_go(run);
    return error;
}
uint64_t own_event(PJRT_Event **event) {
    pthread_mutex_lock(&lock);
    struct run *run = new_run(++last_number);
    if (run)
        run->own = 1;
    *event = run ? show(run) : NULL;
    uint64_t number = *event ? run->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}
PJRT_Error *event_create(PJRT_Event **event) { return own_event(event) ? NULL : made(0); }
void finish_run(uint64_t number, PJRT_Error *error) {
    const PJRT_Api *api = GetPjrtApi();
    PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
    PJRT_Error_Message_Args text = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
    PJRT_Error_Destroy_Args end = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    struct waiter *called = NULL, **last = &called;
    if (error && (api->PJRT_Error_GetCode(&code) || code.code <= 0))
        code.code = PJRT_Error_Code_UNKNOWN;
    if (error)
        api->PJRT_Error_Message(&text);
    pthread_mutex_lock(&lock);
    struct run *run = find(number);
    if (run && run->state == AVIARY_PJRT_PENDING)
        complete(run, error ? code.code : 0, text.message ? text.message : "", &last);
    *last = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (error)
        api->PJRT_Error_Destroy(&end);
    call(called);
}
PJRT_Error *event_set(PJRT_Event *event, PJRT_Error_Code code, const char *message, size_t size) {
    struct waiter *called = NULL, **end = &called;
    char *text = message ? strndup(message, size) : NULL;
    pthread_mutex_lock(&lock);
    struct event *found = look(event);
    int can = found && found->run && found->run->own && found->run->state == AVIARY_PJRT_PENDING;
    if (can)
        complete(found->run, code, text ? text : "", &end);
    *end = NULL;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(text);
    call(called);
    return can ? NULL : made(0);
}
PJRT_Error *event_on_ready(PJRT_Event *event, PJRT_Event_OnReadyCallback callback, void *user_arg) {
    struct waiter *waiter = callback ? malloc(sizeof *waiter) : NULL;
    struct run *run;
    if (!waiter || !hold(event, &run)) {
        free(waiter);
        return made(0);
    }
    *waiter = (struct waiter){NULL, callback, user_arg, NULL};
    pthread_mutex_lock(&lock);
    int later = run && run->state == AVIARY_PJRT_PENDING;
    if (later) {
        *run->last = waiter;
        run->last = &waiter->next;
    }
    pthread_mutex_unlock(&lock);
    if (!later) {
        waiter->error = state_of(run) == AVIARY_PJRT_FAILED ? error_of(run->code, run->text ? run->text : "") : NULL;
        call(waiter);
    }
    if (run)
        let_go(run);
    return NULL;
}
PJRT_Error *buffer_ready_event(PJRT_Buffer *buffer, PJRT_Event **event) {
    struct charged *known = metadata(struct charged, buffer);
    if (!known)
        return made(0);
    uint64_t run = __atomic_load_n(&known->run, __ATOMIC_ACQUIRE);
    if (!run) {
        run = begin_runs(1, NULL, 0);
        if (!run)
            return made(1);
        aviary_pjrt_watch(run, buffer);
        __atomic_store_n(&known->run, run, __ATOMIC_RELEASE);
    }
    *event = event_of(run);
    return *event ? NULL : made(0);
}
static struct run *run_of(PJRT_Buffer *buffer) {
    const struct charged *known = buffer ? metadata(struct charged, buffer) : NULL;
    pthread_mutex_lock(&lock);
    struct run *run = known ? find(known->run) : NULL;
    if (run)
        run->references++;
    pthread_mutex_unlock(&lock);
    return run;
}
/* Why a call with this buffer was refused: it was never made. */
PJRT_Error *failure_of(PJRT_Buffer *buffer) {
    struct run *run = run_of(buffer);
    PJRT_Error *error = run ? outcome(run) : NULL;
    if (run)
        let_go(run);
    return error ? error : made(0);
}
int was_never_made(PJRT_Buffer *buffer) {
    struct run *run = run_of(buffer);
    int failed_run = run && state_of(run) == AVIARY_PJRT_FAILED;
    if (run)
        let_go(run);
    return failed_run;
}
