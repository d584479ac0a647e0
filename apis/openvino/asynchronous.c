/* Inferences that the application does not wait for: each request has a thread of the guest, which makes them and then calls the
   application. */
#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "openvino_types.h"
#include "requests.h"

struct worker {
    ov_infer_request_t *request;
    pthread_t thread;
    pthread_cond_t changed;
    /* Inferences that were started, whose result is there, and whose callback is over as well. */
    uint64_t started, inferred, finished;
    ov_status_e status;
    int ends, cancelled;
};

static _Thread_local const struct worker *this_worker;

static struct worker *worker_of(const ov_infer_request_t *request) {
    struct request *about = request_of(request);
    return about ? about->worker : NULL;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    this_worker = worker;
    pthread_mutex_lock(&requests_lock);
    for (;;) {
        while (worker->started == worker->inferred && !worker->ends)
            pthread_cond_wait(&worker->changed, &requests_lock);
        if (worker->started == worker->inferred)
            break;
        int cancelled = worker->cancelled;
        pthread_mutex_unlock(&requests_lock);
        ov_status_e status = cancelled ? INFER_CANCELLED : aviary_openvino_infer(worker->request);
        pthread_mutex_lock(&requests_lock);
        struct request *about = request_of(worker->request);
        const ov_callback_t *callback = about ? about->callback : NULL;
        worker->status = status;
        uint64_t number = ++worker->inferred;
        pthread_cond_broadcast(&worker->changed);
        pthread_mutex_unlock(&requests_lock);
        if (callback && callback->callback_func)
            callback->callback_func(callback->args);
        pthread_mutex_lock(&requests_lock);
        worker->finished = number;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&requests_lock);
    return NULL;
}

static struct worker *new_worker(ov_infer_request_t *request) {
    struct worker *worker = calloc(1, sizeof *worker);
    pthread_condattr_t monotonic;
    if (!worker)
        return NULL;
    worker->request = request;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!pthread_create(&worker->thread, NULL, work, worker))
        return worker;
    pthread_cond_destroy(&worker->changed);
    free(worker);
    return NULL;
}

/* The thread's own inference is no reason to refuse it. */
int is_busy(const ov_infer_request_t *request) {
    pthread_mutex_lock(&requests_lock);
    const struct worker *worker = worker_of(request);
    int busy = worker && worker != this_worker && worker->started != worker->inferred;
    pthread_mutex_unlock(&requests_lock);
    return busy;
}

int is_asynchronous(const ov_infer_request_t *request) {
    pthread_mutex_lock(&requests_lock);
    const struct worker *worker = worker_of(request);
    int known = worker && worker->started > 0;
    pthread_mutex_unlock(&requests_lock);
    return known;
}

ov_status_e start_inference(ov_infer_request_t *request) {
    ov_status_e status = OK;
    pthread_mutex_lock(&requests_lock);
    struct request *about = request_of(request);
    if (about && !about->worker)
        about->worker = new_worker(request);
    struct worker *worker = about ? about->worker : NULL;
    if (!worker)
        status = GENERAL_ERROR;
    else if (worker->started != worker->inferred)
        status = REQUEST_BUSY;
    else {
        worker->started++;
        worker->cancelled = 0;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&requests_lock);
    return status;
}

/* Until the callback is over as well, as natively. */
ov_status_e wait_inference(ov_infer_request_t *request, int64_t milliseconds) {
    struct timespec until;
    int late = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (milliseconds > 1000ll * 3600 * 24 * 365)
        milliseconds = -1;
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000)
        until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&requests_lock);
    struct worker *worker = worker_of(request);
    uint64_t number = worker ? worker->started : 0;
    while (worker && worker->finished < number && !late)
        late = milliseconds < 0 ? pthread_cond_wait(&worker->changed, &requests_lock)
                                : pthread_cond_timedwait(&worker->changed, &requests_lock, &until);
    ov_status_e status = worker && worker->finished >= number ? worker->status : RESULT_NOT_READY;
    pthread_mutex_unlock(&requests_lock);
    return status;
}

/* The library makes an inference that is waited for after the one that is under way: that has its result, too. */
void settle(const ov_infer_request_t *request) {
    pthread_mutex_lock(&requests_lock);
    struct worker *worker = worker_of(request);
    uint64_t number = worker && worker != this_worker ? worker->started : 0;
    while (worker && worker->inferred < number)
        pthread_cond_wait(&worker->changed, &requests_lock);
    pthread_mutex_unlock(&requests_lock);
}

/* Once for each inference: then the library is told. */
int can_cancel(const ov_infer_request_t *request) {
    pthread_mutex_lock(&requests_lock);
    const struct worker *worker = worker_of(request);
    int can = worker && worker->started != worker->inferred && !worker->cancelled;
    pthread_mutex_unlock(&requests_lock);
    return can;
}

ov_status_e cancel_inference(ov_infer_request_t *request) {
    pthread_mutex_lock(&requests_lock);
    struct worker *worker = worker_of(request);
    if (worker)
        worker->cancelled = 1;
    pthread_mutex_unlock(&requests_lock);
    return ov_infer_request_cancel(request);
}

ov_status_e set_callback(ov_infer_request_t *request, const ov_callback_t *callback) {
    struct request *about = request_of(request);
    if (!about || !callback)
        return INVALID_C_PARAM;
    if (is_busy(request))
        return REQUEST_BUSY;
    pthread_mutex_lock(&requests_lock);
    about->callback = callback;
    pthread_mutex_unlock(&requests_lock);
    return OK;
}

int has_more(const ov_infer_request_t *request) {
    const struct request *about = request_of(request);
    return about && (about->held || about->worker || about->others);
}

void end_request(ov_infer_request_t *request) {
    pthread_mutex_lock(&requests_lock);
    struct request *about = request_of(request);
    struct worker *worker = about ? about->worker : NULL;
    struct held *held = about ? about->held : NULL;
    struct other_name *others = about ? about->others : NULL;
    if (about)
        about->worker = NULL, about->held = NULL, about->others = NULL, about->callback = NULL;
    if (worker) {
        worker->ends = 1;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&requests_lock);
    if (worker && worker == this_worker)
        pthread_detach(worker->thread);
    else if (worker) {
        pthread_join(worker->thread, NULL);
        pthread_cond_destroy(&worker->changed);
        free(worker);
    }
    ov_infer_request_free(request);
    release_held(held);
    release_names(others);
}
