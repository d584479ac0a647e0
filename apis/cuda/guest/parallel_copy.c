/* Copies of memory by several threads: one moves less in a second than the device takes. The others sleep until somebody
 * gathers them for a copy of many pieces, and look for work until it is over. */
#include "guest/waiting.h"
#include <emmintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HELPERS = 3, WORTH_GATHERING = 256 << 10, SMALLEST_SHARE = 64 << 10, LARGEST_SHARE = 128 << 10, LOOKS = 2000 };

static struct {
    /* One thread leads them at a time. */
    int led;
    int started;
    /* They sleep on this word while it is 0. */
    int active;
    /* The piece: changed by the leader when all of it is done, so that a helper with a share may read it. */
    char *to;
    const char *from;
    size_t bytes, share;
    int streamed;
    /* From the top: the number of the piece, 32 bits; how many shares it has, and the next of them, 16 bits each. */
    uint64_t next;
    uint32_t done;
} crew;

/* True if this thread leads the helpers. */
static __thread int leads;

/* ---- One thread ----------------------------------------------------------------------------- */

/* Past the caches: what the device will read from memory is not read into them first. `to` begins a cache line. */
static void stream(char *to, const char *from, size_t bytes) {
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    memcpy(to, from, bytes);
    /* Writes that come after, a message to the API server first of all, come after these bytes. */
    _mm_sfence();
}

static void move(char *to, const char *from, size_t bytes, int streamed) {
    if (streamed)
        stream(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* ---- Several ---------------------------------------------------------------------------------- */

/* Takes a share and copies it; 0: there is none. */
static int copy_share(void) {
    uint64_t next = __atomic_load_n(&crew.next, __ATOMIC_ACQUIRE);
    do {
        if ((next & 0xffff) >= (next >> 16 & 0xffff))
            return 0;
    } while (!__atomic_compare_exchange_n(&crew.next, &next, next + 1, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    size_t at = (next & 0xffff) * crew.share, left = crew.bytes - at;
    move(crew.to + at, crew.from + at, left < crew.share ? left : crew.share, crew.streamed);
    __atomic_add_fetch(&crew.done, 1, __ATOMIC_RELEASE);
    return 1;
}

static void look_away(unsigned int looks) {
    if (looks < LOOKS)
        __builtin_ia32_pause();
    else
        sched_yield();
}

static void *help(void *unused) {
    (void)unused;
    for (;;) {
        for (unsigned int looks = 0; __atomic_load_n(&crew.active, __ATOMIC_ACQUIRE); looks++) {
            if (copy_share())
                looks = 0;
            look_away(looks);
        }
        syscall(SYS_futex, &crew.active, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    }
    return NULL;
}

/* Helpers block every signal, so that none of the application's is handled on them. None where CPUs are few. */
static int start_helpers(void) {
    sigset_t all, before;
    int started = 0;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2 * HELPERS)
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < HELPERS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, NULL) != 0)
            break;
        pthread_detach(thread);
        started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* True if others help this thread until it dismisses them: with a copy of so many bytes, if nobody else leads them. */
int cuda_gather_helpers(size_t bytes) {
    if (bytes < WORTH_GATHERING || __atomic_exchange_n(&crew.led, 1, __ATOMIC_ACQUIRE))
        return 0;
    if (!crew.started)
        crew.started = start_helpers() > 0 ? 1 : -1;
    if (crew.started < 0) {
        __atomic_store_n(&crew.led, 0, __ATOMIC_RELEASE);
        return 0;
    }
    leads = 1;
    __atomic_store_n(&crew.active, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &crew.active, FUTEX_WAKE_PRIVATE, HELPERS, NULL, NULL, 0);
    return 1;
}

void cuda_dismiss_helpers(void) {
    if (!leads)
        return;
    leads = 0;
    __atomic_store_n(&crew.active, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&crew.led, 0, __ATOMIC_RELEASE);
}

/* Copies up to 1 MiB with the gathered helpers. `streamed`: into memory that only the device reads. */
void cuda_copy_together(char *to, const char *from, size_t bytes, int streamed) {
    if (!leads || bytes < 2 * SMALLEST_SHARE) {
        move(to, from, bytes, streamed);
        return;
    }
    size_t share = bytes / 8 / 64 * 64;
    share = share < SMALLEST_SHARE ? SMALLEST_SHARE : share > LARGEST_SHARE ? LARGEST_SHARE : share;
    uint32_t shares = (uint32_t)((bytes + share - 1) / share), looks = 0;
    crew.to = to;
    crew.from = from;
    crew.bytes = bytes;
    crew.share = share;
    crew.streamed = streamed;
    crew.done = 0;
    uint64_t piece = (__atomic_load_n(&crew.next, __ATOMIC_RELAXED) >> 32) + 1;
    __atomic_store_n(&crew.next, piece << 32 | (uint64_t)shares << 16, __ATOMIC_RELEASE);
    while (copy_share()) {
    }
    while (__atomic_load_n(&crew.done, __ATOMIC_ACQUIRE) < shares)
        look_away(looks++);
}
