/* Runs inside the API server's own process, where inside.c has put it: without a C library.
 *
 *   limit AMOUNT    in the tenant's page each word of this amount becomes a huge one, once
 *   free MS LIMIT   in the tenant's page each word of this limit becomes a huge one and each amount below it 0, again and again
 *   zero MS         amounts of 1 to 70 million in the tenant's page become 0 again and again, for so long
 *   noise MS        any words of all pages of the node's become noise, again and again
 *   message TEXT    this message through all of the process's sockets, 64 times: each `#` in it is the number of a session, 1 to 64
 *   keep MS         the tenant's page stays locked for so long
 *
 * Answers how many words were written, or messages sent. */
typedef unsigned long u64;
typedef unsigned int u32;

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;

    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

enum { WRITE = 1, FSTAT = 5, MMAP = 9, MUNMAP = 11, READLINK = 89, CLOCK_GETTIME = 228 };

static int has(const char *text, const char *word)
{
    for (; *text; text++) {
        int at = 0;

        while (word[at] && text[at] == word[at])
            at++;
        if (!word[at])
            return 1;
    }
    return 0;
}

static u64 number(const char *text)
{
    u64 value = 0;

    while (*text && (*text < '0' || *text > '9'))
        text++;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + *text - '0';
    return value;
}

/* What follows the first number. */
static const char *after(const char *text)
{
    while (*text && (*text < '0' || *text > '9'))
        text++;
    while (*text >= '0' && *text <= '9')
        text++;
    return text;
}

static u64 milliseconds(void)
{
    long time[2];

    call(CLOCK_GETTIME, 1, (long)time, 0, 0, 0, 0);
    return time[0] * 1000 + time[1] / 1000000;
}

/* The words of a memory file with this in its name, mapped; `count` says how many. */
static volatile u64 *page(int descriptor, const char *word, u64 *count)
{
    char path[32] = "/proc/self/fd/", link[200];
    long status[32];
    int at = 14;

    if (descriptor > 99)
        path[at++] = '0' + descriptor / 100;
    if (descriptor > 9)
        path[at++] = '0' + descriptor / 10 % 10;
    path[at++] = '0' + descriptor % 10;
    path[at] = 0;
    long length = call(READLINK, (long)path, (long)link, 199, 0, 0, 0);
    if (length <= 0)
        return 0;
    link[length] = 0;
    if (!has(link, word) || call(FSTAT, descriptor, (long)status, 0, 0, 0, 0) < 0)
        return 0;
    u64 bytes = status[6];
    long at_address = call(MMAP, 0, bytes, 3, 1, descriptor, 0);
    if (at_address < 0 && at_address > -4096)
        return 0;
    *count = bytes / 8;
    return (volatile u64 *)at_address;
}

static u64 messages(const char *text)
{
    char message[512];
    u64 sent = 0;

    for (int session = 1; session <= 64; session++) {
        int length = 0;

        for (const char *from = text; *from && length < 500; from++) {
            if (*from != '#') {
                message[length++] = *from;
                continue;
            }
            if (session > 9)
                message[length++] = '0' + session / 10;
            message[length++] = '0' + session % 10;
        }
        for (int descriptor = 3; descriptor < 64; descriptor++) {
            unsigned status[36];

            if (call(FSTAT, descriptor, (long)status, 0, 0, 0, 0) < 0 || (status[6] & 0170000) != 0140000)
                continue;
            sent += call(WRITE, descriptor, (long)message, length, 0, 0, 0) > 0;
        }
    }
    return sent;
}

__attribute__((section(".text.entry"))) long entry(const char *argument)
{
    if (argument[0] == 'm')
        return messages(argument + sizeof "message");
    u64 wanted = number(argument), count = 0, written = 0, state = 88172645463325252UL, until = milliseconds() + wanted;

    if (argument[0] == 'n') {
        do {
            for (int descriptor = 3; descriptor < 200; descriptor++) {
                volatile u64 *words = page(descriptor, "memfd:aviary-", &count);

                for (u64 step = 0; words && step < 4096; step++) {
                    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
                    words[state % (step % 2 ? count : count < 512 ? count : 512)] = state;
                    written++;
                }
                if (words)
                    call(MUNMAP, (long)words, count * 8, 0, 0, 0, 0);
            }
        } while (milliseconds() < until);
        return written;
    }
    for (int descriptor = 3; descriptor < 200; descriptor++) {
        volatile u64 *words = page(descriptor, "aviary-tenant", &count);

        if (!words)
            continue;
        if (argument[0] == 'l') {
            for (u64 at = 0; at < count; at++)
                if (words[at] == wanted)
                    words[at] = 1UL << 40, written++;
        } else if (argument[0] == 'f') {
            /* The limit of the argument's second number; all that may be a sum or an amount. */
            u64 limit = number(after(argument));
            do
                for (u64 at = 2; at < count && at < 65536; at++)
                    if (words[at] == limit)
                        words[at] = 1UL << 40, written++;
                    else if (words[at] >= 1000000 && words[at] < limit)
                        words[at] = 0, written++;
            while (milliseconds() < until);
        } else if (argument[0] == 'k') {
            /* Behind the magic: the lock's holder, as slot 1's. */
            do
                ((volatile u32 *)words)[2] = 1, written++;
            while (milliseconds() < until);
        } else {
            do
                for (u64 at = 2; at < count && at < 8192; at++)
                    if (words[at] >= 1000000 && words[at] <= 70000000 && words[at] != 67108864)
                        words[at] = 0, written++;
            while (milliseconds() < until);
        }
        break;
    }
    return written;
}
