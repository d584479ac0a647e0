/* Programs, their entries and the bindings of these: all in places that are used again at once. */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "testapi.h"

#define PROGRAMS 64

struct ta_binding_st {
    bool live;
    const uint64_t *cells;
    size_t count;
};

struct ta_entry_st {
    struct ta_program_st *program;
    uint32_t number;
    uint64_t note;
    struct ta_binding_st binding;
};

struct ta_program_st {
    bool live, kept;
    uint32_t version;
    struct ta_entry_st entries[TA_PROGRAM_ENTRIES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ta_program_st programs[PROGRAMS];

/* Under the lock. A handle is any pointer: it is compared before it is followed. */
static struct ta_program_st *program_of(ta_program handle) {
    for (int i = 0; i < PROGRAMS; i++)
        if (&programs[i] == handle)
            return handle->live ? handle : NULL;
    return NULL;
}

static struct ta_entry_st *entry_of(ta_entry handle) {
    for (int i = 0; i < PROGRAMS * TA_PROGRAM_ENTRIES; i++) {
        struct ta_program_st *program = &programs[i / TA_PROGRAM_ENTRIES];
        if (&program->entries[i % TA_PROGRAM_ENTRIES] == handle)
            return program->live ? handle : NULL;
    }
    return NULL;
}

static struct ta_binding_st *binding_of(ta_binding handle) {
    for (int i = 0; i < PROGRAMS * TA_PROGRAM_ENTRIES; i++) {
        struct ta_program_st *program = &programs[i / TA_PROGRAM_ENTRIES];
        if (&program->entries[i % TA_PROGRAM_ENTRIES].binding == handle)
            return program->live && handle->live ? handle : NULL;
    }
    return NULL;
}

ta_status ta_program_load(uint32_t version, ta_program *program) {
    if (!program)
        return TA_INVALID_VALUE;
    ta_status status = TA_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PROGRAMS && status != TA_OK; i++) {
        if (programs[i].live)
            continue;
        memset(&programs[i], 0, sizeof programs[i]);
        programs[i].live = true;
        programs[i].version = version;
        for (uint32_t n = 0; n < TA_PROGRAM_ENTRIES; n++)
            programs[i].entries[n] = (struct ta_entry_st){.program = &programs[i], .number = n};
        *program = &programs[i];
        status = TA_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ta_status ta_program_unload(ta_program handle) {
    pthread_mutex_lock(&lock);
    struct ta_program_st *program = program_of(handle);
    ta_status status = !program ? TA_INVALID_PROGRAM : program->kept ? TA_BUSY : TA_OK;
    if (status == TA_OK)
        program->live = false;
    pthread_mutex_unlock(&lock);
    return status;
}

ta_status ta_program_unload_async(ta_program program) {
    return ta_program_unload(program);
}

ta_status ta_program_unload_slowly(ta_program program, uint32_t milliseconds) {
    ta_status status = ta_program_unload(program);
    usleep(milliseconds * 1000);
    return status;
}

ta_status ta_program_keep(ta_program handle, int32_t keep) {
    pthread_mutex_lock(&lock);
    struct ta_program_st *program = program_of(handle);
    if (program)
        program->kept = keep != 0;
    pthread_mutex_unlock(&lock);
    return program ? TA_OK : TA_INVALID_PROGRAM;
}

ta_status ta_program_entry(ta_program handle, uint32_t number, ta_entry *entry) {
    if (!entry || number >= TA_PROGRAM_ENTRIES)
        return TA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct ta_program_st *program = program_of(handle);
    if (program)
        *entry = &program->entries[number];
    pthread_mutex_unlock(&lock);
    return program ? TA_OK : TA_INVALID_PROGRAM;
}

ta_status ta_program_entries(ta_program program, uint32_t capacity, ta_entry *entries, uint32_t *count) {
    for (uint32_t i = 0; entries && i < capacity && i < TA_PROGRAM_ENTRIES; i++) {
        ta_status status = ta_program_entry(program, i, &entries[i]);
        if (status != TA_OK)
            return status;
    }
    if (count)
        *count = TA_PROGRAM_ENTRIES;
    return TA_OK;
}

ta_entry ta_program_main(ta_program program) {
    ta_entry entry = NULL;
    return ta_program_entry(program, 0, &entry) == TA_OK ? entry : NULL;
}

ta_status ta_entry_facts(ta_entry handle, uint64_t *facts) {
    pthread_mutex_lock(&lock);
    struct ta_entry_st *entry = entry_of(handle);
    if (entry && facts)
        *facts = entry->program->version * 100ull + entry->number;
    pthread_mutex_unlock(&lock);
    return !entry ? TA_INVALID_ENTRY : facts ? TA_OK : TA_INVALID_VALUE;
}

ta_status ta_entry_place(ta_entry handle, uint64_t *place) {
    pthread_mutex_lock(&lock);
    struct ta_entry_st *entry = entry_of(handle);
    if (entry && place)
        *place = (uint64_t)((char *)entry - (char *)programs);
    pthread_mutex_unlock(&lock);
    return !entry ? TA_INVALID_ENTRY : place ? TA_OK : TA_INVALID_VALUE;
}

ta_status ta_entry_note(ta_entry handle, uint64_t note) {
    pthread_mutex_lock(&lock);
    struct ta_entry_st *entry = entry_of(handle);
    if (entry)
        entry->note = note;
    pthread_mutex_unlock(&lock);
    return entry ? TA_OK : TA_INVALID_ENTRY;
}

ta_status ta_entry_noted(ta_entry handle, uint64_t *note) {
    pthread_mutex_lock(&lock);
    struct ta_entry_st *entry = entry_of(handle);
    if (entry && note)
        *note = entry->note;
    pthread_mutex_unlock(&lock);
    return !entry ? TA_INVALID_ENTRY : note ? TA_OK : TA_INVALID_VALUE;
}

ta_status ta_entry_bind(ta_entry handle, size_t bytes, const uint64_t *cells, size_t count, ta_binding *binding) {
    (void)bytes; /* there is no device that could run out of it */
    if (!binding || (count && !cells))
        return TA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct ta_entry_st *entry = entry_of(handle);
    ta_status status = !entry ? TA_INVALID_ENTRY : entry->binding.live ? TA_BUSY : TA_OK;
    if (status == TA_OK) {
        entry->binding = (struct ta_binding_st){.live = true, .cells = cells, .count = count};
        *binding = &entry->binding;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ta_status ta_binding_sum(ta_binding handle, uint64_t *sum) {
    if (!sum)
        return TA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct ta_binding_st *binding = binding_of(handle);
    *sum = 0;
    for (size_t i = 0; binding && i < binding->count; i++)
        *sum += binding->cells[i];
    pthread_mutex_unlock(&lock);
    return binding ? TA_OK : TA_INVALID_BINDING;
}

ta_status ta_binding_end(ta_binding handle) {
    pthread_mutex_lock(&lock);
    struct ta_binding_st *binding = binding_of(handle);
    if (binding)
        binding->live = false;
    pthread_mutex_unlock(&lock);
    return binding ? TA_OK : TA_INVALID_BINDING;
}
