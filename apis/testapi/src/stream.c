/* Streams and jobs: work that a thread of the library ends later. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "object.h"
#include "state.h"

struct pending {
    struct pending *next;
    void *to;
    void *data; /* the buffer's content when the copy was issued */
    size_t bytes;
};

struct ta_stream_st {
    struct object object;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct pending *first, **last;
    bool busy, closing;
};

/* Copies of all streams that were issued and are not done. */
static _Atomic int copies_left;

int ta_streams_busy(void) { return copies_left; }

static void *stream_run(void *argument) {
    struct ta_stream_st *s = argument;
    pthread_mutex_lock(&s->lock);
    while (s->first || !s->closing) {
        struct pending *p = s->first;
        if (!p) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        s->first = p->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        usleep(2000); /* late enough to be seen by a test that does not wait */
        memcpy(p->to, p->data, p->bytes);
        copies_left--;
        free(p->data);
        free(p);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static ta_stream stream_new(ta_status wrong, ta_status *error) {
    ta_status status = wrong;
    struct ta_stream_st *s = NULL;
    if (wrong != TA_OK) {
        /* nothing to create */
    } else if (!(s = object_new(KIND_STREAM, sizeof *s))) {
        status = TA_OUT_OF_MEMORY;
    } else {
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->changed, NULL);
        s->last = &s->first;
        if (pthread_create(&s->thread, NULL, stream_run, s)) {
            bool found;
            free(object_release(s, KIND_STREAM, &found));
            s = NULL;
            status = TA_OUT_OF_MEMORY;
        }
    }
    if (error)
        *error = status;
    return s;
}

ta_stream ta_stream_create(ta_device device, ta_status *error) {
    return stream_new(object_check(device, KIND_DEVICE) ? TA_OK : TA_INVALID_DEVICE, error);
}

ta_stream ta_stream_fork(ta_stream stream, ta_status *error) {
    return stream_new(object_check(stream, KIND_STREAM) ? TA_OK : TA_INVALID_STREAM, error);
}

ta_status ta_stream_destroy(ta_stream stream) {
    bool found;
    struct ta_stream_st *s = object_release(stream, KIND_STREAM, &found);
    if (s) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        free(s);
    }
    return found ? TA_OK : TA_INVALID_STREAM;
}

ta_status ta_read_async(ta_buffer buffer, size_t offset, size_t bytes, void *to, ta_stream stream) {
    struct ta_buffer_st *b = object_check(buffer, KIND_BUFFER);
    struct ta_stream_st *s = object_check(stream, KIND_STREAM);
    if (!b)
        return TA_INVALID_BUFFER;
    if (!s)
        return TA_INVALID_STREAM;
    if (!to || offset > b->bytes || bytes > b->bytes - offset)
        return TA_INVALID_VALUE;
    struct pending *p = calloc(1, sizeof *p);
    if (!p || !(p->data = malloc(bytes ? bytes : 1))) {
        free(p);
        return TA_OUT_OF_MEMORY;
    }
    memcpy(p->data, b->data + offset, bytes);
    p->to = to;
    p->bytes = bytes;
    copies_left++;
    pthread_mutex_lock(&s->lock);
    *s->last = p;
    s->last = &p->next;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return TA_OK;
}

ta_status ta_stream_synchronize(ta_stream stream) {
    struct ta_stream_st *s = object_check(stream, KIND_STREAM);
    if (!s)
        return TA_INVALID_STREAM;
    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return TA_OK;
}

ta_status ta_flush(void) {
    return TA_OK;
}

struct ta_job_st {
    struct object object;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    uint32_t milliseconds;
    uint8_t value;
    uint8_t *to;
    size_t bytes;
    bool doubles, done;
};

static void *job_run(void *argument) {
    struct ta_job_st *j = argument;
    usleep(j->milliseconds * 1000);
    for (size_t i = 0; i < j->bytes; i++)
        j->to[i] = j->doubles ? (uint8_t)(j->to[i] * 2) : j->value;
    pthread_mutex_lock(&j->lock);
    j->done = true;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static ta_status job_start(struct ta_job_st what, ta_job *job) {
    if (!what.to || !job)
        return TA_INVALID_VALUE;
    struct ta_job_st *j = object_new(KIND_JOB, sizeof *j);
    if (!j)
        return TA_OUT_OF_MEMORY;
    j->milliseconds = what.milliseconds; /* the list owns j->object: no struct copy */
    j->value = what.value;
    j->to = what.to;
    j->bytes = what.bytes;
    j->doubles = what.doubles;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, NULL);
    if (pthread_create(&j->thread, NULL, job_run, j)) {
        bool found;
        free(object_release(j, KIND_JOB, &found));
        return TA_OUT_OF_MEMORY;
    }
    *job = j;
    return TA_OK;
}

ta_status ta_job_start(uint32_t milliseconds, uint8_t value, void *to, size_t bytes, ta_job *job) {
    return job_start((struct ta_job_st){.milliseconds = milliseconds, .value = value, .to = to, .bytes = bytes}, job);
}

ta_status ta_job_double(uint32_t milliseconds, uint8_t *bytes, size_t count, ta_job *job) {
    return job_start((struct ta_job_st){.milliseconds = milliseconds, .to = bytes, .bytes = count, .doubles = true},
                     job);
}

/* May be asked while another thread destroys the job. */
ta_status ta_job_query(ta_job job) {
    struct ta_job_st *j = object_hold(job, KIND_JOB);
    ta_status status = TA_INVALID_JOB;
    if (j) {
        pthread_mutex_lock(&j->lock);
        status = j->done ? TA_OK : TA_NOT_READY;
        pthread_mutex_unlock(&j->lock);
    }
    object_let_go();
    return status;
}

ta_status ta_job_wait(ta_job job) {
    struct ta_job_st *j = object_check(job, KIND_JOB);
    if (!j)
        return TA_INVALID_JOB;
    pthread_mutex_lock(&j->lock);
    while (!j->done)
        pthread_cond_wait(&j->changed, &j->lock);
    pthread_mutex_unlock(&j->lock);
    return TA_OK;
}

ta_status ta_job_destroy(ta_job job) {
    bool found;
    /* A job that still writes is not gone: a query meanwhile must not say so. */
    if (ta_job_wait(job) != TA_OK)
        return TA_INVALID_JOB;
    struct ta_job_st *j = object_release(job, KIND_JOB, &found);
    if (j) {
        pthread_join(j->thread, NULL);
        free(j);
    }
    return found ? TA_OK : TA_INVALID_JOB;
}
