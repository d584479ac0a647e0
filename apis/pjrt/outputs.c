/* Executions, and what the guest knows of buffers without asking. */
#include "pjrt_types.h"
#include "known.h"
#include <aviary/guest.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 64, MOST_LISTED = 1 << 20 };

/* The guest's table: asking for it is a call. */
static const PJRT_Api *table_of_this(void) {
    static const PJRT_Api *table;
    if (!__atomic_load_n(&table, __ATOMIC_ACQUIRE))
        __atomic_store_n(&table, GetPjrtApi(), __ATOMIC_RELEASE);
    return table;
}
/* True: the call succeeded. */
static int went_well(const PJRT_Api *api, PJRT_Error *error) {
    PJRT_Error_Destroy_Args end = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    if (error)
        api->PJRT_Error_Destroy(&end);
    return error == NULL;
}

/* --- what an executable tells of its outputs */

/* The memory of the device that has this kind; NULL: it has none. */
static PJRT_Memory *memory_on(const PJRT_Api *api, PJRT_Device *device, const char *kind, size_t size) {
    PJRT_Device_AddressableMemories_Args all = {.struct_size = PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, .device = device};
    if (!went_well(api, api->PJRT_Device_AddressableMemories(&all)))
        return NULL;
    for (size_t i = 0; i < all.num_memories; i++) {
        PJRT_Memory_Kind_Args has = {.struct_size = PJRT_Memory_Kind_Args_STRUCT_SIZE, .memory = all.memories[i]};
        if (went_well(api, api->PJRT_Memory_Kind(&has)) && has.kind_size == size && memcmp(has.kind, kind, size) == 0)
            return all.memories[i];
    }
    return NULL;
}
static void know_places(const PJRT_Api *api, PJRT_LoadedExecutable *executable, PJRT_Executable *whole, struct loaded *loaded) {
    PJRT_LoadedExecutable_AddressableDevices_Args devices = {
        .struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE, .executable = executable};
    PJRT_Executable_OutputMemoryKinds_Args kinds = {
        .struct_size = PJRT_Executable_OutputMemoryKinds_Args_STRUCT_SIZE, .executable = whole};
    if (!went_well(api, api->PJRT_LoadedExecutable_AddressableDevices(&devices)))
        return;
    loaded->devices = devices.addressable_devices;
    loaded->num_devices = devices.num_addressable_devices;
    if (!went_well(api, api->PJRT_Executable_OutputMemoryKinds(&kinds)) || kinds.num_outputs != loaded->outputs)
        return;
    PJRT_Memory **memories = calloc(devices.num_addressable_devices * kinds.num_outputs + 1, sizeof *memories);
    for (size_t i = 0; memories && i < devices.num_addressable_devices; i++)
        for (size_t k = 0; k < kinds.num_outputs; k++)
            memories[i * kinds.num_outputs + k] =
                memory_on(api, devices.addressable_devices[i], kinds.memory_kinds[k], kinds.memory_kind_sizes[k]);
    loaded->memories = memories;
}
int know_executable(PJRT_LoadedExecutable *executable, PJRT_Executable *whole) {
    const PJRT_Api *api = table_of_this();
    struct loaded *loaded = metadata(struct loaded, executable);
    PJRT_Executable_OutputElementTypes_Args types = {
        .struct_size = PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE, .executable = whole};
    PJRT_Executable_OutputDimensions_Args shapes = {
        .struct_size = PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE, .executable = whole};
    if (!api || !loaded)
        return 0;
    know_places(api, executable, whole, loaded);
    if (went_well(api, api->PJRT_Executable_OutputElementTypes(&types)) &&
        went_well(api, api->PJRT_Executable_OutputDimensions(&shapes)) && types.num_output_types == loaded->outputs &&
        shapes.num_outputs == loaded->outputs) {
        loaded->types = types.output_types;
        loaded->dim_sizes = shapes.dim_sizes;
        /* Where all outputs are numbers there are no dimensions. */
        static const int64_t none[1];
        loaded->dims = shapes.dims ? shapes.dims : none;
    }
    return 0;
}
int know_client(PJRT_LoadedExecutable *executable, PJRT_Client *client) {
    struct loaded *loaded = metadata(struct loaded, executable);
    if (loaded)
        loaded->client = client;
    return 0;
}
/* Before it ends. */
int forget_executable(PJRT_LoadedExecutable *executable) {
    struct loaded *loaded = metadata(struct loaded, executable);
    if (loaded)
        free(__atomic_exchange_n(&loaded->memories, NULL, __ATOMIC_ACQ_REL));
    return 0;
}

/* --- executions */

struct lists {
    PJRT_Buffer **inputs, **outputs;
    uint64_t *causes;
    uint64_t input_count, output_count;
};

/* All inputs, one behind the other. An execution may take them: nobody else tells. */
static void gather(struct lists *lists, PJRT_Buffer *const *const *argument_lists, size_t num_devices, size_t num_args) {
    for (size_t i = 0; i < num_devices; i++)
        for (size_t k = 0; k < num_args; k++) {
            size_t at = i * num_args + k;
            PJRT_Buffer *input = argument_lists && argument_lists[i] ? argument_lists[i][k] : NULL;
            struct charged *known = input ? metadata(struct charged, input) : NULL;
            lists->inputs[at] = input;
            lists->causes[at] = known ? known->run : 0;
            if (known)
                __atomic_store_n(&known->passed, 1, __ATOMIC_RELAXED);
        }
}
/* The number of a device among those that executions were sent to one by one, from 1 on; 0: there are too many. */
static uint64_t device_number(PJRT_Device *device) {
    static PJRT_Device *seen[4096];
    for (uint64_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        PJRT_Device *none = NULL;
        PJRT_Device *at = __atomic_load_n(&seen[i], __ATOMIC_ACQUIRE);
        if (at == device || (!at && __atomic_compare_exchange_n(&seen[i], &none, device, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) ||
            none == device)
            return i + 1;
    }
    return 0;
}
static void scatter(const struct lists *lists, PJRT_LoadedExecutable *executable, PJRT_Buffer **const *output_lists,
                    size_t num_devices, PJRT_Device *device, uint64_t run) {
    const struct loaded *loaded = metadata(struct loaded, executable);
    size_t each = lists->output_count / num_devices;
    uint64_t apart = device ? device_number(device) : 0;
    int places = loaded && loaded->devices && !device && num_devices <= loaded->num_devices;
    for (size_t i = 0; i < num_devices; i++) {
        const int64_t *dims = loaded ? loaded->dims : NULL;
        for (size_t k = 0; k < each; k++) {
            PJRT_Buffer *output = lists->outputs[i * each + k];
            struct charged *known = metadata(struct charged, output);
            output_lists[i][k] = output;
            if (!known)
                continue;
            known->run = run + i;
            known->position = apart << 32 | (i * each + k);
            known->maker = device && !apart ? NULL : executable;
            known->client = loaded ? loaded->client : NULL;
            known->device = device ? device : places ? loaded->devices[i] : NULL;
            known->memory = places && loaded->memories ? loaded->memories[i * each + k] : NULL;
            if (!dims)
                continue;
            known->shaped = 1;
            known->type = loaded->types[k];
            known->dims = dims;
            known->num_dims = loaded->dim_sizes[k];
            dims += known->num_dims;
        }
    }
}
static int room_for(struct lists *lists, void *few, size_t room) {
    size_t words = 2 * lists->input_count + lists->output_count;
    void *memory = words * sizeof(void *) <= room ? few : malloc(words * sizeof(void *));
    if (!memory)
        return 0;
    lists->inputs = memory;
    lists->outputs = lists->inputs + lists->input_count;
    lists->causes = (uint64_t *)(lists->outputs + lists->output_count);
    memset(lists->outputs, 0, lists->output_count * sizeof(void *));
    return 1;
}
/* What is a function of the program's, or an object that no call here makes; NULL: nothing is. */
static PJRT_Error *beyond(const PJRT_ExecuteOptions *options) {
    size_t have = options ? options->struct_size : 0;
    if ((have >= offsetof(PJRT_ExecuteOptions, launch_id) && (options->num_send_ops || options->num_recv_ops)) ||
        (have >= PJRT_ExecuteOptions_STRUCT_SIZE && options->num_hlo_output_callbacks))
        return made(3);
    int has_slices =
        have >= offsetof(PJRT_ExecuteOptions, use_major_to_minor_data_layout_for_callbacks) && options->multi_slice_config;
    return has_slices ? made(4) : NULL;
}
PJRT_Error *execute(PJRT_LoadedExecutable *executable, PJRT_ExecuteOptions *options, PJRT_Buffer *const *const *argument_lists,
                    size_t num_devices, size_t num_args, PJRT_Buffer **const *output_lists, PJRT_Event **events, PJRT_Device *device) {
    const struct loaded *loaded = metadata(struct loaded, executable);
    PJRT_Error *refused = beyond(options);
    void *few[FEW];
    if (refused)
        return refused;
    if (!loaded || num_devices == 0 || num_devices > MOST_LISTED || num_args > MOST_LISTED || num_devices * num_args > MOST_LISTED ||
        loaded->outputs > MOST_LISTED || num_devices * loaded->outputs > MOST_LISTED || (loaded->outputs && !output_lists))
        return made(0);
    struct lists lists = {.input_count = num_devices * num_args, .output_count = num_devices * loaded->outputs};
    for (size_t i = 0; loaded->outputs && i < num_devices; i++)
        if (!output_lists[i])
            return made(0);
    if (!room_for(&lists, few, sizeof few))
        return made(0);
    gather(&lists, argument_lists, num_devices, num_args);
    uint64_t run = begin_runs(num_devices, lists.causes, lists.input_count);
    if (run)
        aviary_pjrt_execute(run, num_devices, executable, options, lists.inputs, num_args, lists.outputs, device);
    /* The guest names outputs of a call that it has sent. */
    int sent = run && !is_gone() && (lists.output_count == 0 || lists.outputs[0]);
    if (sent) {
        scatter(&lists, executable, output_lists, num_devices, device, run);
        for (size_t i = 0; events && i < num_devices; i++)
            events[i] = event_of(run + i);
    } else if (run) {
        end_runs(run, num_devices);
    }
    if ((void **)lists.inputs != few)
        free(lists.inputs);
    return sent ? NULL : made(aviary_connected() ? 0 : 1);
}

/* --- buffers */

PJRT_LoadedExecutable *maker_of(PJRT_Buffer *buffer) {
    const struct charged *known = metadata(struct charged, buffer);
    return known && known->maker && aviary_is_handle(known->maker) ? known->maker : NULL;
}
/* The client, of a buffer that is like the others of its place as long as its executable exists. */
PJRT_Client *keeper_of(PJRT_Buffer *buffer) {
    const struct charged *known = metadata(struct charged, buffer);
    return maker_of(buffer) ? known->client : NULL;
}
uint64_t position_of(PJRT_Buffer *buffer) {
    const struct charged *known = metadata(struct charged, buffer);
    return known ? known->position : 0;
}
/* A buffer from the host is where it was put: in that memory, or in the usual one of that device. */
int know_place(PJRT_Buffer *buffer, PJRT_Device *device, PJRT_Memory *memory) {
    const PJRT_Api *api = table_of_this();
    struct charged *known = metadata(struct charged, buffer);
    PJRT_Device_DefaultMemory_Args usual = {.struct_size = PJRT_Device_DefaultMemory_Args_STRUCT_SIZE, .device = device};
    PJRT_Memory_AddressableByDevices_Args owners = {
        .struct_size = PJRT_Memory_AddressableByDevices_Args_STRUCT_SIZE, .memory = memory};
    if (!known || !api)
        return 0;
    if (memory && went_well(api, api->PJRT_Memory_AddressableByDevices(&owners))) {
        known->memory = memory;
        known->device = owners.num_devices == 1 ? owners.devices[0] : NULL;
    } else if (!memory && device && went_well(api, api->PJRT_Device_DefaultMemory(&usual))) {
        known->device = device;
        known->memory = usual.memory;
    }
    return 0;
}
int passed(PJRT_Buffer *buffer, int is_deleted) {
    struct charged *known = metadata(struct charged, buffer);
    if (known)
        __atomic_store_n(&known->passed, is_deleted != 0, __ATOMIC_RELAXED);
    return 0;
}
/* One that another buffer has become is where that was. */
int know_like(PJRT_Buffer *buffer, PJRT_Buffer *from) {
    struct charged *known = metadata(struct charged, buffer);
    const struct charged *before = metadata(struct charged, from);
    if (known && before) {
        known->device = before->device;
        known->memory = before->memory;
    }
    return passed(from, 1);
}
PJRT_Device *device_of(PJRT_Buffer *buffer) {
    const struct charged *known = metadata(struct charged, buffer);
    return known ? known->device : NULL;
}
PJRT_Memory *memory_of(PJRT_Buffer *buffer) {
    const struct charged *known = metadata(struct charged, buffer);
    return known ? known->memory : NULL;
}
int is_shaped(PJRT_Buffer *buffer) {
    const struct charged *known = metadata(struct charged, buffer);
    return known && known->shaped;
}
PJRT_Error *tell_type(PJRT_Buffer *buffer, PJRT_Buffer_Type *type) {
    *type = metadata(struct charged, buffer)->type;
    return NULL;
}
PJRT_Error *tell_dims(PJRT_Buffer *buffer, const int64_t **dims, size_t *num_dims) {
    const struct charged *known = metadata(struct charged, buffer);
    *dims = known->dims;
    *num_dims = known->num_dims;
    return NULL;
}

/* An error with which a program would end, of a buffer that was never made, is none. */
static PJRT_Error *unless_never_made(PJRT_Buffer *buffer, PJRT_Error *error) {
    const PJRT_Api *api = table_of_this();
    return error && api && was_never_made(buffer) && !went_well(api, error) ? NULL : error;
}
/* The API server is asked about buffers that an execution or another call has had since the last time. */
PJRT_Error *tell_deleted(PJRT_Buffer *buffer, _Bool *is_deleted) {
    const struct charged *known = metadata(struct charged, buffer);
    *is_deleted = 0;
    if (!known)
        return made(0);
    if (!__atomic_load_n(&known->passed, __ATOMIC_RELAXED))
        return NULL;
    PJRT_Error *error = aviary_pjrt_deleted(buffer, is_deleted);
    if (!error)
        passed(buffer, *is_deleted);
    return unless_never_made(buffer, error);
}
PJRT_Error *tell_dynamic(PJRT_Buffer *buffer, const size_t **indices, size_t *count) {
    *indices = NULL;
    *count = 0;
    return unless_never_made(buffer, aviary_pjrt_dynamic(buffer, indices, count));
}

/* --- layouts: what is written of them is kept once for all that are alike */

struct text {
    struct text *next;
    size_t size;
    char bytes[];
};
static const char *kept(const char *bytes, size_t size) {
    static struct text *texts;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    struct text *text = texts;
    while (text && (text->size != size || memcmp(text->bytes, bytes, size) != 0))
        text = text->next;
    if (!text && (text = malloc(sizeof *text + size)) != NULL) {
        text->next = texts;
        text->size = size;
        memcpy(text->bytes, bytes, size);
        texts = text;
    }
    pthread_mutex_unlock(&lock);
    return text ? text->bytes : NULL;
}
/* The usual one for its type and shape. */
static PJRT_Error *usual_layout(const PJRT_Api *api, PJRT_Buffer *buffer, PJRT_Layouts_MemoryLayout **layout) {
    const struct charged *known = metadata(struct charged, buffer);
    const PJRT_Extension_Base *extension = api->extension_start;
    while (extension && extension->type != PJRT_Extension_Type_Layouts)
        extension = extension->next;
    if (!known || !known->client || !extension || !known->shaped)
        return made(0);
    PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args args = {
        .struct_size = sizeof args, .client = known->client, .type = known->type, .dims = known->dims, .num_dims = known->num_dims};
    const PJRT_Layouts_Extension *layouts = (const PJRT_Layouts_Extension *)(const void *)extension;
    PJRT_Error *error = layouts->PJRT_Layouts_PJRT_Client_GetDefaultLayout(&args);
    *layout = error ? NULL : args.layout;
    return error;
}
PJRT_Error *tell_layout(PJRT_Buffer *buffer, PJRT_Layouts_MemoryLayout **layout) {
    const PJRT_Api *api = table_of_this();
    PJRT_Error *error = aviary_pjrt_layout(buffer, layout);
    if (!error || !api || unless_never_made(buffer, error))
        return error;
    return usual_layout(api, buffer, layout);
}
int is_shared(PJRT_Layouts_MemoryLayout *layout) {
    const struct known_layout *known = metadata(struct known_layout, layout);
    return known && known->shared;
}
int share_layout(PJRT_Layouts_MemoryLayout *layout, PJRT_Client *keeper) {
    struct known_layout *known = keeper ? metadata(struct known_layout, layout) : NULL;
    if (known)
        known->shared = 1;
    return 0;
}
int keep_bytes(PJRT_Layouts_MemoryLayout *layout, const char *bytes, size_t size) {
    struct known_layout *known = bytes ? metadata(struct known_layout, layout) : NULL;
    if (known && !known->bytes) {
        known->size = size;
        __atomic_store_n(&known->bytes, kept(bytes, size), __ATOMIC_RELEASE);
    }
    return 0;
}
int has_bytes(PJRT_Layouts_MemoryLayout *layout) {
    const struct known_layout *known = metadata(struct known_layout, layout);
    return known && __atomic_load_n(&known->bytes, __ATOMIC_ACQUIRE) != NULL;
}
static void nothing(void *object) { (void)object; }
PJRT_Error *tell_bytes(PJRT_Layouts_MemoryLayout *layout, const char **bytes, size_t *size, void *serialized, void *deleter) {
    const struct known_layout *known = metadata(struct known_layout, layout);
    *bytes = known->bytes;
    *size = known->size;
    *(void **)serialized = (void *)(uintptr_t)known->bytes;
    *(void (**)(void *))deleter = nothing;
    return NULL;
}
