/* Objects that this process offers to other API servers of its tenant: memory here, events in events.c. */
#include "server.h"
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t note_of(size_t bytes, int device) {
    return (uint64_t)cuda_device_tag(device) << CUDA_OFFERED_BYTES_BITS | bytes;
}

/* Offers the descriptor, which it closes. */
CUresult cuda_offer_descriptor(struct cuda_offer *offer, int descriptor, uint64_t note) {
    offer->stands = aviary_offer(descriptor, note, &offer->name) == 0;
    close(descriptor);
    return offer->stands ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult offer_piece(struct cuda_offer *offer, int exported, size_t bytes, int device) {
    int descriptor = fcntl(exported, F_DUPFD_CLOEXEC, 3);
    return descriptor < 0 ? CUDA_ERROR_OUT_OF_MEMORY : cuda_offer_descriptor(offer, descriptor, note_of(bytes, device));
}

/* Before memory is released: the offer holds on to it. */
void cuda_end_offer(struct cuda_offer *offer) {
    if (offer->stands)
        aviary_withdraw(&offer->name);
    for (size_t i = 0; i < offer->piece_count; i++)
        cuda_end_offer(&offer->pieces[i]);
    free(offer->pieces);
    *offer = (struct cuda_offer){0};
}

/* The names of a list's offers in a file of their own. -1: there is no memory for it. */
static int list_of(const struct cuda_offer *offer) {
    aviary_offer_name *names = calloc(offer->piece_count, sizeof *names);
    for (size_t i = 0; names && i < offer->piece_count; i++)
        names[i] = offer->pieces[i].name;
    int descriptor = names ? cuda_new_sealed_file("aviary pieces", names, offer->piece_count * sizeof *names) : -1;
    free(names);
    return descriptor;
}

CUresult cuda_offer_pieces(struct cuda_offer *offer, const int *exported, size_t count, size_t bytes, int device) {
    if (count == 1)
        return offer_piece(offer, exported[0], bytes, device);
    CUresult status = CUDA_SUCCESS;
    offer->pieces = calloc(count, sizeof *offer->pieces);
    for (; offer->pieces && offer->piece_count < count && status == CUDA_SUCCESS; offer->piece_count++)
        status = offer_piece(&offer->pieces[offer->piece_count], exported[offer->piece_count], 0, device);
    int list = offer->pieces && status == CUDA_SUCCESS ? list_of(offer) : -1;
    if (status == CUDA_SUCCESS)
        status = list < 0 ? CUDA_ERROR_OUT_OF_MEMORY : cuda_offer_descriptor(offer, list, note_of(bytes, device) | CUDA_OFFERED_LIST);
    if (status != CUDA_SUCCESS)
        cuda_end_offer(offer);
    return status;
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
