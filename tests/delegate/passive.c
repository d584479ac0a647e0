/* Who works during synchronous calls: this thread alone, or others, too?
 *   passive CALLS            checks that nobody else does
 *   passive CALLS count      prints what this thread's calls cost, for people */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

/* While this is 1 the kernel answers a system call of this thread with SIGSYS. */
static volatile char blocks;
static volatile int system_calls;

/* Counts the first one, and lets it and all later ones happen. */
static void on_system_call(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    blocks = 0;
    system_calls++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] -= 2;
}

/* 0: this kernel cannot tell. */
static int watch_system_calls(void) {
    struct sigaction action = {.sa_sigaction = on_system_call, .sa_flags = SA_SIGINFO};
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &blocks) == 0;
}

/* Nanoseconds that the other threads of this process have run, and how many there are. */
static long long others_ran(int *count) {
    long long all = 0, ran;
    char path[64];
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == gettid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", task->d_name);
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%lld", &ran) == 1) {
            all += ran;
            ++*count;
        }
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return all;
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    int calls = argc > 1 ? atoi(argv[1]) : 100000, failed = 0, before = 0, after = 0;
    long long ran;
    /* The lane opens, and its thread goes to sleep: how soon is the machine's doing. Where others always work, this ends, too. */
    for (int tries = 0; tries < 1000; tries++) {
        int unused = 0;
        ran = others_ran(&unused);
        for (int i = 0; i < 1000; i++)
            failed += ta_noop() != TA_OK;
        if (others_ran(&unused) == ran)
            break;
    }
    /* From here on this program hears of them, and no longer the twin. */
    int watches = watch_system_calls();
    ran = others_ran(&before);
    struct rusage first, last;
    double cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
    getrusage(RUSAGE_THREAD, &first);
    blocks = 1;
    for (int i = 0; i < calls; i++)
        failed += ta_noop() != TA_OK;
    blocks = 0;
    getrusage(RUSAGE_THREAD, &last);
    cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
    ran = others_ran(&after) - ran;
    if (argc > 2) {
        printf("%.1f ns of this thread a call, %.1f ns of %d others\n", cpu * 1e9 / calls, (double)ran / calls, after);
        return failed != 0;
    }
    CHECK_EQ(failed, 0);
    CHECK(after > 0 && after == before);
    CHECK_EQ(ran, 0);
    CHECK_EQ(last.ru_nvcsw - first.ru_nvcsw, 0);
    if (watches)
        CHECK_EQ(system_calls, 0);
    else
        printf("skip system calls cannot be watched with this kernel\n");
    return check_done();
}
