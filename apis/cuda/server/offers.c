/* Objects that this process offers to other API servers of its tenant: memory here, events in events.c. */
#include "server.h"
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* The note about the memory beside its descriptor: its size, and above that the tag of its device. */
enum { OFFERED_BYTES_BITS = 48 };
/* Offers the descriptor, which it closes. */
CUresult cuda_offer_descriptor(struct cuda_offer *offer, int descriptor, uint64_t note) {
    offer->stands = aviary_offer(descriptor, note, &offer->name) == 0;
    close(descriptor);
    return offer->stands ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Offers the memory of an export, unless it is offered already; the descriptor remains the caller's. */
CUresult cuda_offer_memory(struct cuda_offer *offer, int exported, size_t bytes, int device) {
    if (offer->stands)
        return CUDA_SUCCESS;
    int descriptor = fcntl(exported, F_DUPFD_CLOEXEC, 3);
    if (descriptor < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_offer_descriptor(offer, descriptor, (uint64_t)cuda_device_tag(device) << OFFERED_BYTES_BITS | bytes);
}

/* Before memory is released: the offer holds on to it. */
void cuda_end_offer(struct cuda_offer *offer) {
    if (offer->stands)
        aviary_withdraw(&offer->name);
    offer->stands = 0;
}

void cuda_tell_offer_name(const struct cuda_offer *offer, aviary_shared_name *name) {
    _Static_assert(sizeof *name == sizeof offer->name, "the name of an offer crosses as it is");
    memcpy(name, &offer->name, sizeof *name);
}

/* True if memory of that device can be offered at all; drivers of some platforms cannot. */
int cuda_is_offerable(int device) {
    static int known[64];
    if (device < 0 || device >= 64)
        return 0;
    int answer = __atomic_load_n(&known[device], __ATOMIC_RELAXED);
    if (!answer) {
        int supported = 0;
        CUresult status = cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
        answer = status == CUDA_SUCCESS && supported ? 1 : -1;
        __atomic_store_n(&known[device], answer, __ATOMIC_RELAXED);
    }
    return answer > 0;
}

/* ---- What others offer ------------------------------------------------------------------------ */

/* A descriptor that the caller closes; -1: there is no such offer. */
int cuda_fetch_offer(const aviary_shared_name *name, uint64_t *note) {
    aviary_offer_name offered;
    memcpy(&offered, name, sizeof offered);
    return aviary_fetch(&offered, note);
}

__thread struct cuda_fetched cuda_fetched;

void cuda_drop_fetched(void) {
    if (cuda_fetched.there)
        close(cuda_fetched.descriptor);
    cuda_fetched.there = 0;
}

/* Fetches it: where the device memory lies that importing it adds. */
uint64_t cuda_ordinal_of_offer(const aviary_shared_name *name) {
    uint64_t note = 0;
    /* Of a call that was refused. */
    cuda_drop_fetched();
    if (!name)
        return 0;
    cuda_fetched.descriptor = cuda_fetch_offer(name, &note);
    cuda_fetched.there = cuda_fetched.descriptor >= 0;
    if (note == CUDA_OFFERED_EVENT)
        cuda_drop_fetched();
    cuda_fetched.bytes = note & (((uint64_t)1 << OFFERED_BYTES_BITS) - 1);
    return cuda_fetched.there ? cuda_ordinal_of_tag((unsigned int)(note >> OFFERED_BYTES_BITS), &cuda_fetched.device) : 0;
}

/* How much that is. */
uint64_t cuda_fetched_bytes(void) {
    return cuda_fetched.there ? cuda_fetched.bytes : 0;
}

CUresult cuda_import_fetched(CUmemGenericAllocationHandle *handle) {
    if (!cuda_fetched.there || !handle) {
        cuda_drop_fetched();
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult status = cuMemImportFromShareableHandle(handle, (void *)(uintptr_t)cuda_fetched.descriptor,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    cuda_drop_fetched();
    return status;
}
