// SPDX-License-Identifier: GPL-2.0
/* Actions of one process with a session: its arena, sleeping and waking, pinning. */

#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void test_open(void)
{
	struct aviary_info info = { 0 };
	int fd = open_device();
	void *arena;

	CHECK(fd >= 0, "open");
	CHECK(!ioctl(fd, AVIARY_INFO, &info), "info");
	CHECK(info.interface == AVIARY_INTERFACE && info.largest_arena >= 1ULL << 30,
	      "interface %u, largest arena %llu", info.interface, info.largest_arena);
	CHECK(mmap(NULL, CHUNK, 3, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL, "private");
	CHECK(mmap(NULL, CHUNK, 3, MAP_SHARED, fd, 4096) == MAP_FAILED && errno == EINVAL,
	      "offset");
	CHECK(mmap(NULL, 4096, 3, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL, "length");
	CHECK(mmap(NULL, info.largest_arena + CHUNK, 3, MAP_SHARED, fd, 0) == MAP_FAILED &&
	      errno == EINVAL, "too large");
	arena = mmap(NULL, CHUNK, 3, MAP_SHARED, fd, 0);
	CHECK(arena != MAP_FAILED, "mmap");
	CHECK(mmap(NULL, CHUNK, 3, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EBUSY, "twice");
	CHECK(ioctl(fd, _IO(0xA7, 99)) && errno == ENOTTY, "unknown request");
	munmap(arena, CHUNK);
	close(fd);
}

static void test_before_greeting(void)
{
	struct session s;

	CHECK(!session_open(&s, ARENA), "open");
	*word_at(&s, 8) = 77;
	*word_at(&s, 5 * CHUNK) = 78;
	CHECK(do_wait(&s, 8, 1, -1) == 0, "another value");
	CHECK(do_wait(&s, 8, 77, 1000000) == ETIMEDOUT, "timeout");
	CHECK(do_wake(&s, 8, 0) == ENOTCONN, "doorbell");
	CHECK(do_pin(&s, (void *)4096, 4096, 20 * CHUNK, 0) == ENOTCONN, "pin");
	CHECK(!greet(&s), "greeting");
	CHECK(ask(&s, LOAD, 8, 0, 0) == 77, "seen after the greeting");
	CHECK(ask(&s, LOAD, 5 * CHUNK, 0, 0) == 78, "seen after the greeting");
	CHECK(counters(&s).chunks == 2, "%llu chunks", counters(&s).chunks);
	session_close(&s);
}

static void test_stream(struct session *s)
{
	struct pollfd pollfd = { .fd = s->fd, .events = POLLIN | POLLRDHUP };
	struct control answer;
	uint64_t start = now_us();
	char big[16385] = "";
	int i;

	for (i = 0; i < 100; i++)
		CHECK(ask(s, ECHO, 1, 2, 1000 + i) == (uint64_t)(1000 + i), "echo %d", i);
	printf("echo through the peer: %llu us\n", (unsigned long long)(now_us() - start) / 100);
	CHECK(poll(&pollfd, 1, 0) == 0, "nothing to read");
	fcntl(s->fd, F_SETFL, O_NONBLOCK);
	CHECK(read(s->fd, big, 32) == -1 && errno == EAGAIN, "non-blocking");
	fcntl(s->fd, F_SETFL, 0);
	CHECK(!tell(s, ECHO, 1, 2, 3), "tell");
	CHECK(poll(&pollfd, 1, 2000) == 1 && pollfd.revents == POLLIN, "%#x", pollfd.revents);
	/* Reads an answer in two parts. */
	CHECK(read(s->fd, &answer, 5) == 5 && read(s->fd, (char *)&answer + 5, 27) == 27 &&
	      answer.flags == 3, "pieces");
	CHECK(write(s->fd, big, sizeof(big)) == -1 && errno == EMSGSIZE, "too long");
	CHECK(write(s->fd, (void *)4096, 32) == -1 && errno == EFAULT, "no memory there");
}

static void test_chunks(struct session *s)
{
	uint64_t before = counters(s).chunks, start = now_us();
	int i;

	for (i = 0; i < 64; i++)
		*word_at(s, (100 + i) * CHUNK + 4096) = 7 + i;
	printf("first touch of a chunk: %llu us\n", (unsigned long long)(now_us() - start) / 64);
	CHECK(counters(s).chunks == before + 64, "%llu", counters(s).chunks);
	for (i = 0; i < 64; i += 9)
		CHECK(ask(s, LOAD, (100 + i) * CHUNK + 4096, 0, 0) == (uint64_t)(7 + i), "%d", i);
	CHECK(ask(s, FILL, 100 * CHUNK, CHUNK, 0x5a) == 0, "fill");
	for (i = 0; i < AVIARY_CHUNK; i += 4092)
		CHECK(s->arena[100 * CHUNK + i] == 0x5a, "at %d", i);
	/* Pages removed from the mapping keep their content. */
	CHECK(!madvise(s->arena + 100 * CHUNK, 8192, MADV_DONTNEED), "madvise");
	CHECK(s->arena[100 * CHUNK + 1] == 0x5a && s->arena[100 * CHUNK + 8192] == 0x5a, "kept");
	CHECK(s->arena[101 * CHUNK - 1] == 0x5a, "kept");
}

static void test_release(struct session *s)
{
	uint64_t before = counters(s).chunks;

	memset(s->arena + 200 * CHUNK, 1, 3 * CHUNK);
	memset(s->arena + 204 * CHUNK, 1, CHUNK);
	CHECK(counters(s).chunks == before + 4, "%llu", counters(s).chunks);
	CHECK(do_range(s, AVIARY_RELEASE, 200 * CHUNK, 1000) == EINVAL, "not whole");
	CHECK(do_range(s, AVIARY_RELEASE, s->size, CHUNK) == EINVAL, "outside");
	CHECK(do_range(s, AVIARY_RELEASE, CHUNK, ~0ULL << 18) == EINVAL, "outside");
	CHECK(do_range(s, AVIARY_RELEASE, 201 * CHUNK, 20 * CHUNK) == 0, "with a hole");
	CHECK(counters(s).chunks == before + 1, "%llu", counters(s).chunks);
	CHECK(ask(s, SUM, 201 * CHUNK, CHUNK, 0) == 0, "the host sees nothing");
	CHECK(s->arena[201 * CHUNK] == 0 && s->arena[204 * CHUNK + 5] == 0, "zeros");
	CHECK(s->arena[200 * CHUNK] == 1 && s->arena[201 * CHUNK - 1] == 1, "others stay");
	s->arena[201 * CHUNK] = 9;
	CHECK(ask(s, SUM, 201 * CHUNK, CHUNK, 0) == 9, "registered again");
	CHECK(do_range(s, AVIARY_RELEASE, 200 * CHUNK, 6 * CHUNK) == 0, "all");
	CHECK(counters(s).chunks == before, "%llu", counters(s).chunks);
}

struct touch {
	struct session *session;
	int thread;
	bool release;
};

static void *touch_chunks(void *argument)
{
	struct touch *touch = argument;
	int i;

	for (i = 0; i < 40; i++) {
		struct session *s = touch->session;

		__atomic_add_fetch(word_at(s, (300 + i) * CHUNK), 1, __ATOMIC_SEQ_CST);
		*word_at(s, (300 + i) * CHUNK + 4 + touch->thread * 4) = touch->thread;
		if (touch->release)
			do_range(s, AVIARY_RELEASE, (400 + i) * CHUNK, 4 * CHUNK);
		else
			*word_at(s, (400 + i) * CHUNK + 8192) = 1;
	}
	return NULL;
}

static void test_threads(void)
{
	struct touch touch[8];
	pthread_t threads[8];
	struct session s;
	int i, wrong = 0;

	CHECK(!session_start(&s, 512 * CHUNK), "start");
	for (i = 0; i < 8; i++) {
		touch[i] = (struct touch){ &s, i, i == 7 };
		pthread_create(&threads[i], NULL, touch_chunks, &touch[i]);
	}
	for (i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < 40; i++)
		wrong += *word_at(&s, (300 + i) * CHUNK) != 8;
	CHECK(wrong == 0, "%d words", wrong);
	CHECK(ask(&s, LOAD, 339 * CHUNK, 0, 0) == 8, "seen by the host");
	CHECK(ask(&s, ECHO, 0, 0, 5) == 5, "alive");
	session_close(&s);
}

static void test_sparse(void)
{
	uint64_t size = 64ULL << 30;
	struct session s;

	CHECK(!session_start(&s, size), "64 GiB");
	*word_at(&s, size - 4) = 5;
	*word_at(&s, size / 2) = 6;
	CHECK(ask(&s, LOAD, size - 4, 0, 0) == 5, "the last word");
	CHECK(ask(&s, LOAD, size / 2, 0, 0) == 6, "in the middle");
	CHECK(counters(&s).chunks == 2, "%llu", counters(&s).chunks);
	session_close(&s);
}

struct sleeper {
	struct session *session;
	uint64_t offset;
	int result;
	pthread_t thread;
};

static void *sleep_at(void *argument)
{
	struct sleeper *sleeper = argument;

	sleeper->result = do_wait(sleeper->session, sleeper->offset, 1, 5000000000LL);
	return NULL;
}

static void sleeper_start(struct sleeper *sleeper, struct session *s, uint64_t offset)
{
	uint64_t before = counters(s).sleeps;

	*sleeper = (struct sleeper){ .session = s, .offset = offset, .result = -1 };
	*word_at(s, offset) = 1;
	pthread_create(&sleeper->thread, NULL, sleep_at, sleeper);
	while (counters(s).sleeps == before)
		sleep_ms(1);
}

static void on_signal(int number)
{
}

static void test_sleep(struct session *s)
{
	struct sleeper one, two;
	uint64_t start;

	sleeper_start(&one, s, 64);
	sleeper_start(&two, s, 128);
	CHECK(ask(s, STORE_WAKE, 64, 0, 0) == 0, "wake by the host");
	pthread_join(one.thread, NULL);
	CHECK(one.result == 0, "%d", one.result);
	CHECK(two.result == -1, "the other one sleeps");
	/* A thread that is woken while its word is unchanged sleeps on. */
	CHECK(do_wake(s, 128, AVIARY_WAKE_LOCAL) == 0, "wake");
	sleep_ms(20);
	CHECK(two.result == -1, "its word is as it was");
	*word_at(s, 128) = 0;
	CHECK(do_wake(s, 128, AVIARY_WAKE_LOCAL) == 0, "wake");
	pthread_join(two.thread, NULL);
	CHECK(two.result == 0, "%d", two.result);

	sleeper_start(&one, s, 64);
	signal(SIGUSR1, on_signal);
	pthread_kill(one.thread, SIGUSR1);
	pthread_join(one.thread, NULL);
	CHECK(one.result == EINTR, "%d", one.result);

	start = now_us();
	CHECK(do_wait(s, 64, 1, 50000000) == ETIMEDOUT, "timeout");
	CHECK(now_us() - start >= 50000 && now_us() - start < 2000000, "%llu us",
	      (unsigned long long)(now_us() - start));
	CHECK(do_wait(s, 64, 1, 0) == ETIMEDOUT, "no time at all");
	CHECK(do_wait(s, 62, 1, 0) == EINVAL, "not aligned");
	CHECK(do_wait(s, s->size, 1, 0) == EINVAL, "outside");
	CHECK(do_wait(s, s->size - 4, 0, 0) == EFAULT, "never touched");
	CHECK(do_wake(s, 64, 8) == EINVAL, "unknown flag");
	CHECK(do_wake(s, s->size, 0) == EINVAL, "outside");
}

static void test_doorbell(struct session *s)
{
	uint64_t before = counters(s).kicks, start;
	struct sleeper sleeper;
	int i;

	CHECK(do_wake(s, 256, 0) == 0, "ring");
	CHECK(ask(s, BELLS, 256, 0, 0) == 1, "heard");
	CHECK(counters(s).kicks == before + 1, "counted");
	/* Faster than they are read: all are received, merged or one by one. */
	for (i = 0; i < 5000; i++)
		if (do_wake(s, 512, 0))
			break;
	CHECK(i == 5000, "rang %d times", i);
	CHECK(ask(s, BELLS, 512, 0, 0) >= 1, "heard");

	start = now_us();
	for (i = 0; i < 50; i++) {
		CHECK(ask(s, SERVE_BELL, 320, 384, 0) == 0, "serve");
		*word_at(s, 384) = 1;
		CHECK(do_wake(s, 320, 0) == 0, "ring");
		CHECK(do_wait(s, 384, 1, 5000000000LL) == 0, "woken %d", i);
	}
	printf("doorbell, sleep, wake and an echo: %llu us\n",
	       (unsigned long long)(now_us() - start) / 50);
	before = counters(s).wakes;
	sleeper_start(&sleeper, s, 64);
	CHECK(ask(s, STORE_WAKE, 64, 0, 0) == 0, "wake");
	pthread_join(sleeper.thread, NULL);
	CHECK(counters(s).wakes == before + 1, "counted");
}

static uint64_t sum(const uint8_t *bytes, size_t length)
{
	uint64_t sum = 0;

	while (length--)
		sum += *bytes++;
	return sum;
}

static uint8_t *memory(size_t length)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void test_pin(struct session *s)
{
	size_t length = 4 << 20, i;
	uint8_t *data = memory(length);
	uint64_t at = 120 * CHUNK * 2, start;

	madvise(data, length, MADV_NOHUGEPAGE);
	/* Every second page first, so that the pages are fragmented. */
	for (i = 0; i < length; i += 8192)
		data[i] = i >> 13;
	for (i = 4096; i < length; i += 8192)
		data[i] = 3;
	start = now_us();
	CHECK(do_pin(s, data, length, at, AVIARY_PIN_WRITE) == 0, "pin");
	printf("pinning 4 MiB: %llu us\n", (unsigned long long)(now_us() - start));
	CHECK(counters(s).pages_pinned == length / 4096, "%llu", counters(s).pages_pinned);
	CHECK(total("pages_pinned") == (long)(length / 4096), "%ld", total("pages_pinned"));
	CHECK(ask(s, SUM, at, length, 0) == sum(data, length), "the host sees it");
	CHECK(ask(s, FILL, at + 4096, 12288, 0x77) == 0, "fill");
	CHECK(data[4096] == 0x77 && data[16383] == 0x77 && data[16384] != 0x77, "seen here");
	CHECK(do_pin(s, data, 8192, at + 4096, 0) == EEXIST, "overlap");
	CHECK(do_pin(s, data, 4096, 0, 0) == EEXIST, "where chunks are");
	CHECK(do_range(s, AVIARY_UNPIN, at, 4096) == ENOENT, "a part");
	CHECK(do_range(s, AVIARY_UNPIN, at, length) == 0, "unpin");
	CHECK(do_range(s, AVIARY_UNPIN, at, length) == ENOENT, "twice");
	CHECK(counters(s).pages_pinned == 0 && total("pages_pinned") == 0, "unpinned");
	CHECK(counters(s).bytes_pinned == length, "%llu", counters(s).bytes_pinned);
	CHECK(ask(s, SUM, at, length, 0) == 0, "the host sees it no more");

	CHECK(do_pin(s, data + 1, 4096, at, 0) == EINVAL, "address");
	CHECK(do_pin(s, data, 4095, at, 0) == EINVAL, "length");
	CHECK(do_pin(s, data, 0, at, 0) == EINVAL, "nothing");
	CHECK(do_pin(s, data, 4096, at + 1, 0) == EINVAL, "offset");
	CHECK(do_pin(s, data, 4096, 1ULL << 60, 0) == EINVAL, "outside");
	CHECK(do_pin(s, data, ~4095ULL, at, 0) == EINVAL, "wraps");
	CHECK(do_pin(s, data, 4096, at, 2) == EINVAL, "flags");
	CHECK(do_pin(s, (void *)4096, 4096, at, 0) == EFAULT, "no memory there");
	/* The last page of three does not exist. */
	munmap(data + 8192, 4096);
	CHECK(do_pin(s, data, 12288, at, 0) == EFAULT, "a part of it is no memory");
	CHECK(total("pages_pinned") == 0, "%ld", total("pages_pinned"));

	/* Memory of the arena can be pinned, too. */
	s->arena[2 * CHUNK] = 4;
	CHECK(do_pin(s, s->arena + 2 * CHUNK, 8192, at, AVIARY_PIN_WRITE) == 0, "of the arena");
	CHECK(ask(s, SUM, at, 8192, 0) == 4, "at two places");
	CHECK(do_range(s, AVIARY_UNPIN, at, 8192) == 0, "unpin");

	CHECK(ask(s, REFUSE, 0, 0, ENOMEM) == 0, "refuse");
	CHECK(do_pin(s, data, 8192, at, 0) == ENOMEM, "refused by the host");
	CHECK(counters(s).pages_pinned == 0, "as it was");
	CHECK(do_pin(s, data, 8192, at, 0) == 0, "and again");
	CHECK(do_range(s, AVIARY_UNPIN, at, 8192) == 0, "unpin");

	munmap(data, length);
}

/* Pages that the device only reads must stay the process's own when it writes to them. */
static void test_pin_read(struct session *s)
{
	uint8_t *data = memory(16384);
	const char *path = "/tmp/read-only";
	uint64_t at = 230 * CHUNK;
	uint8_t *shared;
	int fd;

	CHECK(do_pin(s, data, 16384, at, 0) == 0, "never touched");
	memset(data, 2, 16384);
	CHECK(ask(s, SUM, at, 16384, 0) == 2 * 16384, "written after the pin");
	CHECK(do_range(s, AVIARY_UNPIN, at, 16384) == 0, "unpin");
	munmap(data, 16384);

	fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && write(fd, "abc", 3) == 3, "file");
	shared = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(do_pin(s, shared, 4096, at, 0) == 0, "read-only private file");
	CHECK(ask(s, SUM, at, 4096, 0) == 'a' + 'b' + 'c', "its content");
	CHECK(do_range(s, AVIARY_UNPIN, at, 4096) == 0, "unpin");
	CHECK(do_pin(s, shared, 4096, at, AVIARY_PIN_WRITE) == EFAULT, "not writable");
	munmap(shared, 4096);
	shared = mmap(NULL, 4096, PROT_READ, MAP_SHARED, open(path, O_RDONLY), 0);
	CHECK(do_pin(s, shared, 4096, at, 0) == 0, "read-only shared file");
	CHECK(ask(s, SUM, at, 4096, 0) == 'a' + 'b' + 'c', "its content");
	CHECK(do_range(s, AVIARY_UNPIN, at, 4096) == 0, "unpin");
	munmap(shared, 4096);
	close(fd);
}

/* Runs in a process of its own, with a limit on locked memory. */
static void test_pin_limit(void)
{
	struct rlimit limit = { 64 * 1024, 64 * 1024 };
	struct session s;
	uint8_t *data;
	int status;
	pid_t child = fork();

	if (child) {
		waitpid(child, &status, 0);
		CHECK(status == 0, "the limit: status %#x", status);
		return;
	}
	failed = 0;
	setrlimit(RLIMIT_MEMLOCK, &limit);
	CHECK(!setgid(65534) && !setuid(65534), "nobody");
	CHECK(!session_start(&s, ARENA), "start");
	data = memory(128 * 1024);
	CHECK(do_pin(&s, data, 128 * 1024, CHUNK, 0) == ENOMEM, "beyond the limit");
	CHECK(do_pin(&s, data, 64 * 1024, CHUNK, 0) == 0, "the limit");
	CHECK(do_pin(&s, data + 64 * 1024, 4096, 2 * CHUNK, 0) == ENOMEM, "one more");
	CHECK(do_range(&s, AVIARY_UNPIN, CHUNK, 64 * 1024) == 0, "unpin");
	CHECK(do_pin(&s, data + 64 * 1024, 4096, 2 * CHUNK, 0) == 0, "now");
	_exit(failed != 0);
}

int main(void)
{
	struct session s;

	test_open();
	test_before_greeting();
	CHECK(!session_start(&s, ARENA), "start");
	test_stream(&s);
	test_chunks(&s);
	test_release(&s);
	test_sleep(&s);
	test_doorbell(&s);
	test_pin(&s);
	test_pin_read(&s);
	session_close(&s);
	test_threads();
	test_sparse();
	test_pin_limit();
	CHECK(nothing_left(5000), "nothing left");
	return verdict("memory");
}
