/* Allocators that the application has filled itself: texts for it are in memory of its own. */
#include <aviary/guest.h>
#include <string.h>

#include "external.h"
#include "onnxruntime_types.h"

/* Versions of the table that an allocator can have. */
enum { LATEST = 63 };

/* True of a table that the application has filled, and not of one that the library has handed out. */
int is_programs(const OrtAllocator *allocator) {
    return allocator && !aviary_is_handle(allocator) && allocator->version - 1 < LATEST && allocator->Alloc &&
           allocator->Free;
}

/* A text of the default allocator's, moved into the application's memory. */
static OrtStatus *move_text(const OrtApi *api, OrtAllocator *own, OrtAllocator *to, OrtStatus *status, char *text, char **out) {
    if (status || !text) {
        if (!status)
            *out = NULL;
        return status;
    }
    size_t size = strlen(text) + 1;
    char *moved = to->Alloc(to, size);
    if (moved)
        *out = memcpy(moved, text, size);
    own->Free(own, text);
    return moved ? NULL : api->CreateStatus(ORT_FAIL, "the allocator has no memory for a text");
}

/* What both functions below begin with: NULL if there is no server. */
static const OrtApi *begin(OrtAllocator **own) {
    const OrtApi *api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    OrtStatus *status = api ? api->GetAllocatorWithDefaultOptions(own) : NULL;
    if (status)
        api->ReleaseStatus(status);
    return api && !status ? api : NULL;
}

OrtStatus *session_text(uint32_t which, const OrtSession *session, size_t index, OrtAllocator *to, char **out) {
    OrtAllocator *own = NULL;
    const OrtApi *api = begin(&own);
    char *text = NULL;
    OrtStatus *status = NULL;
    if (!api || !out)
        return made_status(api ? 0 : 1);
    switch (which) {
    case 0:
        status = api->SessionGetInputName(session, index, own, &text);
        break;
    case 1:
        status = api->SessionGetOutputName(session, index, own, &text);
        break;
    default:
        status = api->SessionGetOverridableInitializerName(session, index, own, &text);
    }
    return move_text(api, own, to, status, text, out);
}

OrtStatus *profile_text(OrtSession *session, OrtAllocator *to, char **out) {
    OrtAllocator *own = NULL;
    const OrtApi *api = begin(&own);
    char *text = NULL;
    if (!api || !out)
        return made_status(api ? 0 : 1);
    return move_text(api, own, to, api->SessionEndProfiling(session, own, &text), text, out);
}

OrtStatus *model_text(uint32_t which, const OrtModelMetadata *model, const char *key, OrtAllocator *to, char **out) {
    OrtAllocator *own = NULL;
    const OrtApi *api = begin(&own);
    char *text = NULL;
    OrtStatus *status = NULL;
    if (!api || !out)
        return made_status(api ? 0 : 1);
    switch (which) {
    case 0:
        status = api->ModelMetadataGetProducerName(model, own, &text);
        break;
    case 1:
        status = api->ModelMetadataGetGraphName(model, own, &text);
        break;
    case 2:
        status = api->ModelMetadataGetDomain(model, own, &text);
        break;
    case 3:
        status = api->ModelMetadataGetDescription(model, own, &text);
        break;
    case 4:
        status = api->ModelMetadataGetGraphDescription(model, own, &text);
        break;
    default:
        status = api->ModelMetadataLookupCustomMetadataMap(model, own, key, &text);
    }
    return move_text(api, own, to, status, text, out);
}

/* What the application asks of an allocator of its own goes to it. */
OrtStatus *own_alloc(OrtAllocator *allocator, size_t size, void **out) {
    *out = allocator->Alloc(allocator, size);
    return NULL;
}

OrtStatus *own_info(const OrtAllocator *allocator, const OrtMemoryInfo **out) {
    if (!allocator->Info)
        return made_status(2);
    *out = allocator->Info(allocator);
    return NULL;
}

OrtStatus *own_free(OrtAllocator *allocator, void *memory) {
    allocator->Free(allocator, memory);
    return NULL;
}
