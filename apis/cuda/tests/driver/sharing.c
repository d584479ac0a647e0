/* Memory of one process in another: by a descriptor, and by a handle. The program starts itself again as that other one.
 * The output of both goes through the first, line by line.
 *   sharing stranger USER: the other process is another user's and shall get nothing */
#include "common.h"
#include "kernels.h"
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 10 << 20, PART = 2 << 20, WORDS = 1000 };
static int line;

/* A message, perhaps with a descriptor. */
static void pass(const void *bytes, size_t size, int descriptor)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (descriptor >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof(control.space);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    CHECK(sendmsg(line, &message, 0) == (ssize_t)size);
}

static int take(void *bytes, size_t size)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof(control.space)};
    int descriptor = -1;

    CHECK(recvmsg(line, &message, 0) == (ssize_t)size);
    if (CMSG_FIRSTHDR(&message))
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return descriptor;
}

static void say(const char *text)
{
    char message[80] = {0};

    snprintf(message, sizeof(message), "%s", text);
    pass(message, sizeof(message), -1);
}

static void hear(const char *expected)
{
    char message[80];

    take(message, sizeof(message));
    message[sizeof(message) - 1] = 0;
    printf("%s\n", message);
    CHECK(strcmp(message, expected) == 0);
}

static CUmemAllocationProp sharable(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
}

static CUdeviceptr map(CUmemGenericAllocationHandle memory)
{
    CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at;

    MUST(cuMemAddressReserve(&at, LARGE, 0, 0, 0));
    MUST(cuMemMap(at, LARGE, 0, memory, 0));
    MUST(cuMemSetAccess(at, LARGE, &access, 1));
    return at;
}

static void unmap(CUdeviceptr at)
{
    MUST(cuMemUnmap(at, LARGE));
    MUST(cuMemAddressFree(at, LARGE));
}

/* ---- the other process ---- */

static void other(void)
{
    CUmemGenericAllocationHandle memory;
    CUipcMemHandle handle;
    CUdeviceptr at, again, base;
    unsigned words[WORDS];
    size_t size;
    char byte;
    int descriptor;

    start();
    descriptor = take(&byte, 1);
    MUST(cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    at = map(memory);
    MUST(cuMemRelease(memory));
    MUST(cuMemcpyDtoH(words, at, sizeof(words)));
    for (unsigned i = 0; i < WORDS; i++)
        CHECK(words[i] == 7);
    MUST(cuMemsetD32(at, 8, WORDS));
    MUST(cuCtxSynchronize());
    say("the other process wrote through a descriptor");
    take(&byte, 1);
    /* Its maker has released and unmapped it. */
    MUST(cuMemcpyDtoH(words, at, sizeof(words)));
    CHECK(words[WORDS - 1] == 8);
    unmap(at);
    say("it has it although its maker has not");

    take(&handle, sizeof(handle));
    MUST(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    MUST(cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(again == at);
    MUST(cuIpcCloseMemHandle(at));
    MUST(cuMemGetAddressRange(&base, &size, at));
    CHECK(base == at && size >= sizeof(words));
    MUST(cuMemcpyDtoH(words, at, sizeof(words)));
    CHECK(words[0] == 9 && words[WORDS - 1] == 9);
    MUST(cuMemsetD32(at, 10, WORDS));
    MUST(cuIpcCloseMemHandle(at));
    say("the other process wrote through a handle");
    take(&byte, 1);
}

static void stranger(void)
{
    CUmemGenericAllocationHandle memory;
    CUipcMemHandle handle;
    CUdeviceptr at;
    char text[80];
    int descriptor;

    start();
    descriptor = take(&handle, sizeof(handle));
    snprintf(text, sizeof(text), "a stranger imports: %s",
             error_name(cuMemImportFromShareableHandle(&memory, (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    say(text);
    snprintf(text, sizeof(text), "a stranger opens: %s", error_name(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
    say(text);
}

/* ---- the first process ---- */

static void by_descriptor(void)
{
    CUmemAllocationProp property = sharable();
    CUmemGenericAllocationHandle memory, same;
    unsigned words[WORDS];
    CUdeviceptr at;
    int descriptor, second;

    MUST(cuMemCreate(&memory, LARGE, &property, 0));
    at = map(memory);
    MUST(cuMemsetD32(at, 7, WORDS));
    MUST(cuCtxSynchronize());
    MUST(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemExportToShareableHandle(&second, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(second);
    pass("d", 1, descriptor);
    close(descriptor);
    hear("the other process wrote through a descriptor");
    MUST(cuMemcpyDtoH(words, at, sizeof(words)));
    CHECK(words[0] == 8 && words[WORDS - 1] == 8);

    /* The handle can be had again from an address, also after it was released. */
    MUST(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(at + 100)));
    CHECK(same == memory);
    MUST(cuMemRelease(same));
    MUST(cuMemRelease(memory));
    MUST(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)at));
    MUST(cuMemRelease(same));
    unmap(at);
    pass("u", 1, -1);
    hear("it has it although its maker has not");
}

static void by_handle(void)
{
    unsigned words[WORDS];
    CUdeviceptr before, at;
    CUipcMemHandle handle;
    int capable = 0;

    MUST(cuMemAlloc(&before, 5000));
    MUST(cuMemAlloc(&at, sizeof(words)));
    MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at));
    printf("capable: %d\n", capable);
    MUST(cuMemsetD32(at, 9, WORDS));
    MUST(cuCtxSynchronize());
    MUST(cuIpcGetMemHandle(&handle, at));
    pass(&handle, sizeof(handle), -1);
    hear("the other process wrote through a handle");
    MUST(cuMemcpyDtoH(words, at, sizeof(words)));
    CHECK(words[0] == 10 && words[WORDS - 1] == 10);
    MUST(cuMemFree(at));
    MUST(cuMemFree(before));
    pass("f", 1, -1);
}

static void errors(void)
{
    CUmemAllocationProp property = sharable();
    CUmemGenericAllocationHandle memory, own;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUipcMemHandle handle = {"nonsense"};
    CUdeviceptr at, twice;
    int descriptor, ends[2], value = 3;

    CHECK(pipe(ends) == 0);
    TELL(cuMemImportFromShareableHandle(&own, (void *)(uintptr_t)ends[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    TELL(cuMemImportFromShareableHandle(&own, (void *)(uintptr_t)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    TELL(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    TELL(cuIpcCloseMemHandle(0x1234567000));
    TELL(cuIpcGetMemHandle(&handle, 0x1234567000));
    TELL(cuMemRetainAllocationHandle(&own, &value));

    /* One's own memory can be imported, too. */
    MUST(cuMemCreate(&memory, LARGE, &property, 0));
    MUST(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemImportFromShareableHandle(&own, (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    at = map(memory);
    twice = map(own);
    CHECK(at != twice);
    MUST(cuMemsetD32(at, 5, 1));
    MUST(cuMemcpyDtoH(&value, twice, sizeof(value)));
    printf("the same memory twice: %d\n", value);
    /* A mapping ends, and is allowed to devices, as a whole: also one whose memory has pieces of that size. */
    TELL(cuMemUnmap(at, PART));
    TELL(cuMemUnmap(at + PART, LARGE - PART));
    TELL(cuMemSetAccess(at, PART, &access, 1));
    MUST(cuMemcpyDtoH(&value, at, sizeof(value)));
    close(descriptor);
    MUST(cuMemRelease(own));
    MUST(cuMemRelease(memory));
    unmap(at);
    unmap(twice);
}

static void to_stranger(void)
{
    CUmemAllocationProp property = sharable();
    CUmemGenericAllocationHandle memory;
    CUipcMemHandle handle;
    CUdeviceptr at;
    int descriptor;

    MUST(cuMemCreate(&memory, LARGE, &property, 0));
    MUST(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemAlloc(&at, 1000));
    MUST(cuIpcGetMemHandle(&handle, at));
    pass(&handle, sizeof(handle), descriptor);
    hear("a stranger imports: CUDA_ERROR_INVALID_VALUE");
    hear("a stranger opens: CUDA_ERROR_INVALID_VALUE");
}

int main(int count, char **arguments)
{
    int ends[2], status, strangers = count == 3 && strcmp(arguments[1], "stranger") == 0;
    char number[16];
    pid_t child;

    if (count == 3 && !strangers) {
        line = atoi(arguments[2]);
        (strcmp(arguments[1], "other") == 0 ? other : stranger)();
        return 0;
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    line = ends[0];
    snprintf(number, sizeof(number), "%d", ends[1]);
    child = fork();
    if (child == 0) {
        close(ends[0]);
        if (strangers && setuid((uid_t)atoi(arguments[2])) != 0)
            _exit(126);
        execl("/proc/self/exe", arguments[0], strangers ? "nobody" : "other", number, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    start();
    if (strangers) {
        to_stranger();
    } else {
        by_descriptor();
        by_handle();
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (!strangers)
        errors();
    puts("ok sharing");
    return 0;
}
