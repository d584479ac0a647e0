/* Events of several processes. The program starts itself again as the second and the third one; what these print goes through
 * the first, line by line. Work that shall not be done yet stands in its stream before a gate, a number in device memory.
 *   UNUSUAL=1 shared_events        what no documentation promises
 *   shared_events forged           handles made up of others: only through Aviary, whose handles have a mark in front
 *   shared_events stranger USER    the other process is another user's and shall get nothing */
#include "common.h"
#include "kernels.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 1000, GATES = 256, ROUNDS = 50, MANY = 5000, SHARED = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING };

struct handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

static CUfunction fill;
static CUstream worker, waiter, opener;
static CUdeviceptr gates, gates_end, words, own;
static CUevent event;

/* ---- between the processes ---- */

static void pass(int line, const void *bytes, size_t size) { CHECK(write(line, bytes, size) == (ssize_t)size); }
static void take(int line, void *bytes, size_t size) { CHECK(recv(line, bytes, size, MSG_WAITALL) == (ssize_t)size); }

/* The next step is the other's. */
static void hand_over(int line) { pass(line, "", 1); }
static void await(int line)
{
    char byte;

    take(line, &byte, 1);
}

static void say(int line, const char *text)
{
    char message[80] = {0};

    snprintf(message, sizeof(message), "%s", text);
    pass(line, message, sizeof(message));
}

static void hear(int line, const char *who)
{
    char message[80];

    take(line, message, sizeof(message));
    message[sizeof(message) - 1] = 0;
    printf("the %s %s\n", who, message);
}

/* ---- in each ---- */

static void set_up(void)
{
    CUmodule module;

    start();
    MUST(cuModuleLoadData(&module, several));
    MUST(cuModuleGetFunction(&fill, module, "fill"));
    MUST(cuStreamCreate(&worker, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&opener, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&gates, GATES * sizeof(unsigned)));
    MUST(cuMemsetD32(gates, 0, GATES));
    gates_end = gates;
    MUST(cuMemAlloc(&own, WORDS * sizeof(unsigned)));
    MUST(cuCtxSynchronize());
}

/* A gate that nothing else uses; it is closed. */
static CUdeviceptr close_gate(CUstream stream)
{
    CUdeviceptr at = gates_end;

    gates_end += sizeof(unsigned);
    CHECK(gates_end <= gates + GATES * sizeof(unsigned));
    MUST(cuStreamWaitValue32(stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    return at;
}

static void open_gate(CUdeviceptr at)
{
    MUST(cuMemsetD32Async(at, 1, 1, opener));
    MUST(cuStreamSynchronize(opener));
}

static void launch_fill(unsigned first, CUstream stream)
{
    unsigned count = WORDS;
    void *parameters[] = {&words, &first, &count};

    MUST(cuLaunchKernel(fill, 4, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

/* Copies the words that all share, in the stream's order. */
static void copy_words(CUstream stream) { MUST(cuMemcpyDtoDAsync(own, words, WORDS * sizeof(unsigned), stream)); }

static bool copied(unsigned first)
{
    unsigned found[WORDS];

    MUST(cuMemcpyDtoHAsync(found, own, sizeof(found), opener));
    MUST(cuStreamSynchronize(opener));
    for (unsigned i = 0; i < WORDS; i++)
        if (found[i] != first + i)
            return false;
    return true;
}

/* Not yet, and not soon. */
static void check_waiting(CUstream stream)
{
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    usleep(30000);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
}

static struct handles take_handles(int line)
{
    struct handles handles;

    take(line, &handles, sizeof(handles));
    MUST(cuIpcOpenMemHandle(&words, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    MUST(cuIpcOpenEventHandle(&event, handles.event));
    return handles;
}

/* ---- the second and the third ---- */

static void wait_in_stream(int line)
{
    await(line);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    MUST(cuStreamWaitEvent(waiter, event, 0));
    copy_words(waiter);
    check_waiting(waiter);
    say(line, "waits in a stream");
    MUST(cuStreamSynchronize(waiter));
    CHECK(copied(100));
    MUST(cuEventQuery(event));
    say(line, "has what was written before the record");
}

static void second(int line)
{
    struct handles handles;
    float milliseconds;
    CUdeviceptr closed;
    CUevent again;

    set_up();
    handles = take_handles(line);
    MUST(cuEventQuery(event));
    MUST(cuEventSynchronize(event));
    CHECK(cuEventElapsedTime(&milliseconds, event, event) == CUDA_ERROR_INVALID_HANDLE);
    say(line, "opened an event that was never recorded");
    wait_in_stream(line);

    await(line);
    MUST(cuEventSynchronize(event));
    copy_words(waiter);
    MUST(cuStreamSynchronize(waiter));
    CHECK(copied(200));
    say(line, "waited for the event itself");

    /* It records. */
    await(line);
    closed = close_gate(worker);
    launch_fill(300, worker);
    MUST(cuEventRecord(event, worker));
    hand_over(line);
    await(line);
    open_gate(closed);

    /* The first one records twice; this waits for the earlier record. */
    for (int round = 0; round < ROUNDS; round++) {
        await(line);
        MUST(cuStreamWaitEvent(waiter, event, 0));
        hand_over(line);
        MUST(cuStreamSynchronize(waiter));
        CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        hand_over(line);
    }
    say(line, "waited for the record that was the last one then");

    MUST(cuEventDestroy(event));
    hand_over(line);
    await(line);
    MUST(cuIpcOpenEventHandle(&again, handles.event));
    MUST(cuEventSynchronize(again));
    MUST(cuEventDestroy(again));
    say(line, "opened it again");
    MUST(cuIpcCloseMemHandle(words));
}

static void third(int line)
{
    set_up();
    take_handles(line);
    say(line, "opened it");
    wait_in_stream(line);
    await(line);
    MUST(cuEventSynchronize(event));
    say(line, "has it although the second has destroyed its own");
    MUST(cuEventDestroy(event));
    MUST(cuIpcCloseMemHandle(words));
    hand_over(line);
}

/* ---- the first ---- */

static struct handles make_handles(void)
{
    struct handles handles;

    MUST(cuMemAlloc(&words, WORDS * sizeof(unsigned)));
    MUST(cuMemsetD32(words, 0, WORDS));
    MUST(cuCtxSynchronize());
    MUST(cuEventCreate(&event, SHARED | CU_EVENT_BLOCKING_SYNC));
    MUST(cuIpcGetMemHandle(&handles.memory, words));
    MUST(cuIpcGetEventHandle(&handles.event, event));
    return handles;
}

static void record_first(int to_second, int to_third)
{
    CUdeviceptr closed;

    TELL(cuEventQuery(event));
    closed = close_gate(worker);
    launch_fill(100, worker);
    MUST(cuEventRecord(event, worker));
    TELL(cuEventQuery(event));
    hand_over(to_second);
    hand_over(to_third);
    hear(to_second, "second");
    hear(to_third, "third");
    open_gate(closed);
    TELL(cuEventSynchronize(event));
    hear(to_second, "second");
    hear(to_third, "third");

    closed = close_gate(worker);
    launch_fill(200, worker);
    MUST(cuEventRecord(event, worker));
    hand_over(to_second);
    usleep(30000);
    open_gate(closed);
    hear(to_second, "second");
    TELL(cuEventQuery(event));
    hand_over(to_second);
}

/* The event that was complete here no longer is. */
static void wait_for_second(int line)
{
    await(line);
    TELL(cuEventQuery(event));
    MUST(cuStreamWaitEvent(waiter, event, 0));
    copy_words(waiter);
    check_waiting(waiter);
    hand_over(line);
    MUST(cuStreamSynchronize(waiter));
    printf("the first has what the second wrote: %d\n", copied(300));
    TELL(cuEventQuery(event));
}

static void record_several(int line)
{
    CUdeviceptr early, late;

    for (int round = 0; round < ROUNDS; round++) {
        early = close_gate(worker);
        late = close_gate(waiter);
        MUST(cuEventRecord(event, worker));
        hand_over(line);
        await(line);
        MUST(cuEventRecord(event, waiter));
        CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        open_gate(early);
        await(line);
        CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
        open_gate(late);
        MUST(cuEventSynchronize(event));
    }
    hear(line, "second");
    TELL(cuEventQuery(event));
}

static void end(int to_second, int to_third)
{
    await(to_second);
    MUST(cuEventRecord(event, worker));
    hand_over(to_third);
    hear(to_third, "third");
    await(to_third);
    TELL(cuEventSynchronize(event));
    hand_over(to_second);
    hear(to_second, "second");
    MUST(cuEventDestroy(event));
}

static void errors(void)
{
    CUipcEventHandle handle, nonsense = {"nonsense"};
    CUevent plain, opened, shared;
    float milliseconds;
    int supported = 0;

    MUST(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0));
    printf("supported: %d\n", supported);
    TELL(cuEventCreate(&shared, CU_EVENT_INTERPROCESS));
    TELL(cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_BLOCKING_SYNC));
    MUST(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&shared, SHARED));
    TELL(cuIpcGetEventHandle(&handle, plain));
    TELL(cuIpcGetEventHandle(NULL, shared));
    MUST(cuIpcGetEventHandle(&handle, shared));
    TELL(cuIpcOpenEventHandle(NULL, handle));
    TELL(cuIpcOpenEventHandle(&opened, handle));
    TELL(cuIpcOpenEventHandle(&opened, nonsense));
    MUST(cuEventRecord(shared, worker));
    MUST(cuEventSynchronize(shared));
    TELL(cuEventElapsedTime(&milliseconds, shared, shared));
    MUST(cuEventDestroy(shared));
    MUST(cuEventDestroy(plain));
}

/* Nothing stays of events that were shared; others take their places. */
static void make_many(void)
{
    static CUevent plain[MANY];
    CUipcEventHandle handle;
    CUevent shared;

    for (int i = 0; i < MANY; i++) {
        MUST(cuEventCreate(&shared, SHARED));
        MUST(cuIpcGetEventHandle(&handle, shared));
        MUST(cuEventDestroy(shared));
        MUST(cuEventCreate(&plain[i], CU_EVENT_DISABLE_TIMING));
    }
    for (int i = 0; i < MANY; i++)
        MUST(cuEventDestroy(plain[i]));
}

/* ---- what no documentation promises ---- */

static void unusual_second(int line)
{
    CUgraphExec launchable;
    CUdeviceptr closed;
    CUgraph graph;

    set_up();
    take_handles(line);
    /* A launch of a graph records it, and the record is there when the launch returns. */
    closed = close_gate(worker);
    MUST(cuStreamBeginCapture(worker, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_fill(400, worker);
    MUST(cuEventRecordWithFlags(event, worker, CU_EVENT_RECORD_EXTERNAL));
    MUST(cuStreamEndCapture(worker, &graph));
    MUST(cuGraphInstantiate(&launchable, graph, 0));
    MUST(cuGraphLaunch(launchable, worker));
    hand_over(line);
    await(line);
    open_gate(closed);
    MUST(cuStreamSynchronize(worker));
    await(line);

    /* It ends before its record is complete. */
    close_gate(worker);
    MUST(cuEventRecord(event, worker));
    hand_over(line);
    pause();
}

static void unusual(int line, pid_t child)
{
    int status;

    await(line);
    TELL(cuEventQuery(event));
    MUST(cuStreamWaitEvent(waiter, event, 0));
    copy_words(waiter);
    check_waiting(waiter);
    hand_over(line);
    MUST(cuStreamSynchronize(waiter));
    printf("the first has what the second's graph wrote: %d\n", copied(400));
    hand_over(line);

    await(line);
    TELL(cuEventQuery(event));
    MUST(cuStreamWaitEvent(waiter, event, 0));
    check_waiting(waiter);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    TELL(cuEventSynchronize(event));
    TELL(cuStreamSynchronize(waiter));
    MUST(cuEventDestroy(event));
}

/* ---- who shall get nothing ---- */

static void forged(void)
{
    struct handles true_ones, made;
    CUevent opened;
    CUdeviceptr at;

    set_up();
    true_ones = make_handles();
    made = true_ones;
    memcpy(made.event.reserved, true_ones.memory.reserved, sizeof(made.event.reserved));
    memcpy(made.event.reserved, true_ones.event.reserved, 8);
    puts("memory as an event");
    TELL(cuIpcOpenEventHandle(&opened, made.event));
    /* In front of what says which part of the memory. */
    memcpy(made.memory.reserved, true_ones.event.reserved, 32);
    memcpy(made.memory.reserved, true_ones.memory.reserved, 8);
    puts("an event as memory");
    TELL(cuIpcOpenMemHandle(&at, made.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    made.memory = true_ones.memory;
    memset(made.memory.reserved + 32, 0x7f, 8);
    puts("a part that is not in the memory");
    TELL(cuIpcOpenMemHandle(&at, made.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    made.event = true_ones.event;
    made.event.reserved[31] ^= 1;
    puts("a secret that is a little wrong");
    TELL(cuIpcOpenEventHandle(&opened, made.event));
    puts("the true one, here");
    TELL(cuIpcOpenEventHandle(&opened, true_ones.event));
    MUST(cuEventDestroy(event));
    puts("and destroyed");
    TELL(cuIpcOpenEventHandle(&opened, true_ones.event));
}

/* Another tenant's process. */
static void stranger(int line)
{
    struct handles handles;
    char text[80];

    start();
    take(line, &handles, sizeof(handles));
    snprintf(text, sizeof(text), "opens: %s", error_name(cuIpcOpenEventHandle(&event, handles.event)));
    say(line, text);
}

/* ---- all ---- */

static pid_t start_process(char *program, char *role, const char *user, int *line)
{
    int ends[2];
    char number[16];
    pid_t child;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    *line = ends[0];
    child = fork();
    if (child == 0) {
        snprintf(number, sizeof(number), "%d", dup(ends[1]));
        if (user && setuid((uid_t)atoi(user)) != 0)
            _exit(126);
        execl("/proc/self/exe", program, role, number, (char *)NULL);
        _exit(127);
    }
    CHECK(child > 0);
    close(ends[1]);
    return child;
}

static void await_end(pid_t child)
{
    int status;

    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void usual(char *program)
{
    int to_second, to_third;
    pid_t second_process = start_process(program, "second", NULL, &to_second);
    pid_t third_process = start_process(program, "third", NULL, &to_third);
    struct handles handles;

    set_up();
    errors();
    make_many();
    handles = make_handles();
    pass(to_second, &handles, sizeof(handles));
    pass(to_third, &handles, sizeof(handles));
    hear(to_second, "second");
    hear(to_third, "third");
    record_first(to_second, to_third);
    wait_for_second(to_second);
    record_several(to_second);
    end(to_second, to_third);
    await_end(second_process);
    await_end(third_process);
}

int main(int count, char **arguments)
{
    bool strangers = count == 3 && strcmp(arguments[1], "stranger") == 0 && atoi(arguments[2]) > 1000;
    struct handles handles;
    int line;

    if (count == 3 && !strangers) {
        line = atoi(arguments[2]);
        if (strcmp(arguments[1], "stranger") == 0)
            stranger(line);
        else if (strcmp(arguments[1], "third") == 0)
            third(line);
        else
            (getenv("UNUSUAL") ? unusual_second : second)(line);
        return 0;
    }
    if (count == 2 && strcmp(arguments[1], "forged") == 0) {
        forged();
    } else if (strangers) {
        pid_t child = start_process(arguments[0], "stranger", arguments[2], &line);
        set_up();
        handles = make_handles();
        pass(line, &handles, sizeof(handles));
        hear(line, "stranger");
        await_end(child);
    } else if (getenv("UNUSUAL")) {
        pid_t child = start_process(arguments[0], "second", NULL, &line);
        set_up();
        handles = make_handles();
        pass(line, &handles, sizeof(handles));
        unusual(line, child);
    } else {
        usual(arguments[0]);
    }
    puts("ok shared_events");
    return 0;
}
