/* Memory that both sides map at the same address, and that the device uses in place. */
#include "guest/ranges.h"

enum { PAGE = 4096 };

/* True if both sides see the same memory; asked once, a process has one server. */
int cuda_shares_memory(void) {
    static int known;
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!answer) {
        void *probe = aviary_zerocopy_alloc_uninitialized(PAGE);
        answer = probe && aviary_is_zerocopy(probe) ? 1 : -1;
        aviary_zerocopy_free(probe);
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer > 0;
}

/* Memory that both sides see and the device uses in place; `register_flags` as cuMemHostRegister takes them. */
CUresult cuda_shared_alloc(void **memory, size_t bytes, unsigned int register_flags) {
    void *place = aviary_zerocopy_alloc_uninitialized(bytes);
    if (!place)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = aviaryHostRegister(place, bytes, register_flags);
    if (status == CUDA_SUCCESS)
        *memory = place;
    else
        aviary_zerocopy_free(place);
    return status;
}

CUresult cuda_shared_free(void *memory, size_t bytes) {
    /* The driver waits for what uses it. */
    CUresult status = aviaryHostUnregister(memory, bytes);
    aviary_zerocopy_free(memory);
    return status;
}

/* Whole pages, of which nothing else has a part. */
size_t cuda_whole_pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}
