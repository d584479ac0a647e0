/* Executions that no thread of the guest's waits for, and the runs of which the guest is told. */
#include "pjrt_types.h"
#include <aviary/server.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_DEVICES = 16, MOST_FAILED = 1 << 16 };

/* What the plug-in is busy with. */
struct watch {
    uint64_t run;
    PJRT_Event *event;
    struct watch *next, **at;
};
/* What the guest has not been told. */
struct told {
    struct told *next;
    uint64_t run;
    int32_t code;
    char text[];
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct watch *watches;
static struct told *first, **last = &first;
static int guest_is_gone;
/* Runs that have failed: the guest hears of each by the way on which it hears why. */
static uint64_t *failed, failures;

static const PJRT_Api *vendor(void) {
    const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))aviary_function("GetPjrtApi");
    return get ? get() : NULL;
}
static void drop_error(PJRT_Error *error) {
    PJRT_Error_Destroy_Args args = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    if (error)
        vendor()->PJRT_Error_Destroy(&args);
}
static void drop_event(PJRT_Event *event) {
    PJRT_Event_Destroy_Args args = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE, .event = event};
    if (event)
        drop_error(vendor()->PJRT_Event_Destroy(&args));
}

/* With the lock. */
static void tell(uint64_t run, int32_t code, const char *text, size_t size) {
    struct told *told = malloc(sizeof *told + size + 1);
    if (!told)
        abort();
    told->next = NULL;
    told->run = run;
    told->code = code;
    memcpy(told->text, text, size);
    told->text[size] = 0;
    *last = told;
    last = &told->next;
    if (code && (failed || (failed = calloc(MOST_FAILED, sizeof *failed)) != NULL))
        failed[failures++ % MOST_FAILED] = run;
    pthread_cond_broadcast(&changed);
}
/* The same, of an error, which ends; NULL: there was none. */
static void tell_error(uint64_t run, PJRT_Error *error) {
    PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
    PJRT_Error_Message_Args text = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
    if (error) {
        if (vendor()->PJRT_Error_GetCode(&code) || code.code <= 0)
            code.code = PJRT_Error_Code_UNKNOWN;
        vendor()->PJRT_Error_Message(&text);
    }
    tell(run, error ? (int32_t)code.code : 0, text.message ? text.message : "", text.message ? text.message_size : 0);
    drop_error(error);
}
static void ready(PJRT_Error *error, void *user_arg) {
    struct watch *watch = user_arg;
    pthread_mutex_lock(&lock);
    *watch->at = watch->next;
    if (watch->next)
        watch->next->at = watch->at;
    tell_error(watch->run, error);
    pthread_mutex_unlock(&lock);
    drop_event(watch->event);
    free(watch);
}
/* Tells of the run when the event is ready, and ends the event. NULL: a plug-in that has none, and is done. */
static void watch_event(PJRT_Event *event, uint64_t run) {
    struct watch *watch = event ? malloc(sizeof *watch) : NULL;
    if (event && !watch)
        abort();
    pthread_mutex_lock(&lock);
    if (watch) {
        *watch = (struct watch){run, event, watches, &watches};
        if (watches)
            watches->at = &watch->next;
        watches = watch;
    } else {
        tell(run, 0, "", 0);
    }
    pthread_mutex_unlock(&lock);
    if (!watch)
        return;
    PJRT_Event_OnReady_Args args = {
        .struct_size = PJRT_Event_OnReady_Args_STRUCT_SIZE, .event = event, .callback = ready, .user_arg = watch};
    PJRT_Error *error = vendor()->PJRT_Event_OnReady(&args);
    if (error)
        ready(error, watch);
}

/* --- the functions that the guest calls */

int runs_failed(uint64_t run, uint64_t count) {
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < count && i < MOST_FAILED; i++)
        tell(run + i, AVIARY_PJRT_REFUSED, "", 0);
    pthread_mutex_unlock(&lock);
    return 0;
}
static void watch_buffer(uint64_t run, PJRT_Buffer *buffer) {
    PJRT_Buffer_ReadyEvent_Args args = {.struct_size = PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE, .buffer = buffer};
    PJRT_Error *error = vendor()->PJRT_Buffer_ReadyEvent(&args);
    if (!error)
        return watch_event(args.event, run);
    pthread_mutex_lock(&lock);
    tell_error(run, error);
    pthread_mutex_unlock(&lock);
}
void *watcher(void) { return (void *)watch_buffer; }

static int answer_run(uint64_t run, int wait, int *state) {
    pthread_mutex_lock(&lock);
    for (;;) {
        const struct watch *watch = watches;
        while (watch && watch->run != run)
            watch = watch->next;
        *state = watch ? AVIARY_PJRT_PENDING : AVIARY_PJRT_DONE;
        if (!watch || !wait || guest_is_gone)
            break;
        pthread_cond_wait(&changed, &lock);
    }
    for (uint64_t i = 0; failed && i < failures && i < MOST_FAILED; i++)
        if (failed[i] == run)
            *state = AVIARY_PJRT_FAILED;
    pthread_mutex_unlock(&lock);
    return 0;
}
void *asker(void) { return (void *)answer_run; }

static void end_waits(void) {
    pthread_mutex_lock(&lock);
    guest_is_gone = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
static int tell_all(struct aviary_pjrt_done *done, size_t room, size_t *count, char *texts, size_t texts_room, size_t *used) {
    *count = *used = 0;
    if (!done || !texts || room == 0 || texts_room == 0)
        return 1;
    aviary_when_guest_is_gone(end_waits);
    pthread_mutex_lock(&lock);
    while (!first && !guest_is_gone)
        pthread_cond_wait(&changed, &lock);
    while (first && *count < room) {
        struct told *told = first;
        size_t size = told->code ? strlen(told->text) + 1 : 0;
        if (*used + size > texts_room) {
            if (*count)
                break;
            size = texts_room;
            told->text[size - 1] = 0;
        }
        done[(*count)++] = (struct aviary_pjrt_done){told->run, told->code, (uint32_t)*used};
        memcpy(texts + *used, told->text, size);
        *used += size;
        first = told->next;
        if (!first)
            last = &first;
        free(told);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
void *completions(void) { return (void *)tell_all; }

/* Lists of a list's parts; the first of `few` if they are enough. */
static void *parts(void *list, size_t each, size_t count, void **few) {
    void **parts = count <= FEW_DEVICES ? few : calloc(count, sizeof *parts);
    for (size_t i = 0; parts && i < count; i++)
        parts[i] = list ? (char *)list + i * each * sizeof(void *) : NULL;
    return parts;
}
static void run_all(uint64_t run, size_t num_devices, PJRT_LoadedExecutable *executable, const PJRT_ExecuteOptions *options,
                    PJRT_Buffer *const *inputs, size_t num_args, PJRT_Buffer **outputs, PJRT_Device *device) {
    const struct loaded *loaded = metadata(struct loaded, executable);
    /* No guest library sends such lists. */
    if ((num_args && !inputs) || !loaded || (loaded->outputs && !outputs)) {
        runs_failed(run, num_devices);
        return;
    }
    void *few_inputs[FEW_DEVICES], *few_outputs[FEW_DEVICES];
    PJRT_Event *few_events[FEW_DEVICES] = {0}, **events = num_devices <= FEW_DEVICES ? few_events : calloc(num_devices, sizeof *events);
    void *input_lists = parts((void *)(uintptr_t)inputs, num_args, num_devices, few_inputs);
    void *output_lists = parts(outputs, loaded->outputs, num_devices, few_outputs);
    if (!events || !input_lists || !output_lists)
        abort();
    PJRT_LoadedExecutable_Execute_Args args = {
        .struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
        .executable = executable,
        .options = (PJRT_ExecuteOptions *)(uintptr_t)options,
        .argument_lists = input_lists,
        .num_devices = num_devices,
        .num_args = num_args,
        .output_lists = output_lists,
        .device_complete_events = events,
        .execute_device = device,
    };
    PJRT_Error *error = vendor()->PJRT_LoadedExecutable_Execute(&args);
    for (size_t i = 0; !error && i < num_devices; i++)
        watch_event(events[i], run + i);
    /* The outputs' handles name nothing then. */
    for (size_t i = 0; error && i < num_devices * loaded->outputs; i++)
        outputs[i] = NULL;
    if (error) {
        PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
        PJRT_Error_Message_Args text = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
        int32_t number = vendor()->PJRT_Error_GetCode(&code) ? PJRT_Error_Code_UNKNOWN : (int32_t)code.code;
        vendor()->PJRT_Error_Message(&text);
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < num_devices; i++)
            tell(run + i, number, text.message ? text.message : "", text.message ? text.message_size : 0);
        pthread_mutex_unlock(&lock);
        drop_error(error);
    }
    if (num_devices > FEW_DEVICES) {
        free(events);
        free(input_lists);
        free(output_lists);
    }
}
void *executer(void) { return (void *)run_all; }
