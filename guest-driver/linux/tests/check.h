/* SPDX-License-Identifier: GPL-2.0 */
/* Shared by the test programs: counting checks, a session, commands for the peer (peer.py). */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../aviary.h"

#define CHUNK ((uint64_t)AVIARY_CHUNK)
#define ARENA (64 * 1024 * 1024ULL)

static int passed, failed;

#define CHECK(condition, ...) check(condition, __LINE__, #condition, __VA_ARGS__)

__attribute__((format(printf, 4, 5)))
static void check(bool good, int line, const char *what, const char *format, ...)
{
	int err = errno;
	va_list list;

	if (good) {
		passed++;
		return;
	}
	failed++;
	printf("FAIL line %d: %s: ", line, what);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	printf(" (errno %d)\n", err);
	fflush(stdout);
}

static int verdict(const char *program)
{
	printf("%s %s: %d checks passed, %d failed\n", failed ? "FAIL" : "PASS", program, passed,
	       failed);
	fflush(stdout);
	return failed != 0;
}

static inline uint64_t now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000ULL + time.tv_nsec / 1000;
}

static inline void sleep_ms(unsigned int ms)
{
	usleep(ms * 1000);
}

/* Commands, sent as openings of lanes: the device passes no other messages of a guest on. */
enum command {
	ECHO = 1,	/* answered with the same words */
	LOAD,		/* answered with the 32-bit word at `offset` in `flags` */
	STORE_WAKE,	/* the word becomes `flags`; its sleepers are woken */
	HANG_UP,
	SUM,		/* sum of the `length` bytes at `offset` */
	FILL,		/* fills with the byte `flags` */
	SLOW,		/* MAPs are answered after `flags` milliseconds */
	REFUSE,		/* the next MAP is answered with the errno value `flags` */
	BELLS,		/* number of doorbells at `offset` */
	PONG,		/* until hung up: a word that becomes n is answered at the next with n */
	SERVE_BELL,	/* the next doorbell at `offset` stores `flags` at `length` and wakes there */
	KILL_DEVICE,
	STOP_DEVICE,	/* stopped for `flags` milliseconds */
	PAUSE_VM,	/* paused for `flags` milliseconds */
};

struct control {
	uint32_t kind;
	uint32_t lane;
	uint64_t offset;
	uint64_t length;
	uint64_t flags;
};

struct session {
	int fd;
	uint64_t size;
	uint8_t *arena;
};

static inline void append(uint8_t *to, size_t *at, uint64_t word)
{
	memcpy(to + *at, &word, 8);
	*at += 8;
}

/* A greeting as a guest library sends it; the peer uses only the size. */
static inline int greet(struct session *session)
{
	uint8_t hello[256] = "AVhi";
	size_t at = 8;
	uint32_t length;
	ssize_t written;
	uint8_t welcome[4096];

	append(hello, &at, 1);			/* wire version */
	append(hello, &at, 0);			/* flags */
	append(hello, &at, getpid());
	append(hello, &at, 0);			/* specification */
	append(hello, &at, (uintptr_t)session->arena);
	append(hello, &at, session->size);
	append(hello, &at, 0);			/* the API's name, empty */
	append(hello, &at, 0);			/* its version, empty */
	length = at;
	memcpy(hello + 4, &length, 4);
	written = write(session->fd, hello, length);
	if (written != (ssize_t)length)
		return -1;
	return read(session->fd, welcome, sizeof(welcome)) > 0 ? 0 : -1;
}

static inline int open_device(void)
{
	return open("/dev/aviary", O_RDWR | O_CLOEXEC);
}

/* An open session with an arena, not greeted. */
static inline int session_open(struct session *session, uint64_t size)
{
	session->size = size;
	session->fd = open_device();
	if (session->fd < 0)
		return -1;
	session->arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, session->fd, 0);
	if (session->arena == MAP_FAILED) {
		close(session->fd);
		return -1;
	}
	return 0;
}

static inline int session_start(struct session *session, uint64_t size)
{
	return session_open(session, size) ? -1 : greet(session);
}

static inline void session_close(struct session *session)
{
	munmap(session->arena, session->size);
	close(session->fd);
}

static inline int tell(struct session *session, enum command command, uint64_t offset,
		       uint64_t length, uint64_t flags)
{
	struct control control = { 1, command, offset, length, flags };

	return write(session->fd, &control, sizeof(control)) == sizeof(control) ? 0 : -1;
}

static inline int hear(struct session *session, struct control *answer)
{
	size_t got = 0;
	ssize_t n;

	while (got < sizeof(*answer)) {
		n = read(session->fd, (uint8_t *)answer + got, sizeof(*answer) - got);
		if (n <= 0)
			return -1;
		got += n;
	}
	return 0;
}

/* The answer's `flags`; UINT64_MAX if there is no answer. */
static inline uint64_t ask(struct session *session, enum command command, uint64_t offset,
			   uint64_t length, uint64_t flags)
{
	struct control answer;

	if (tell(session, command, offset, length, flags) || hear(session, &answer))
		return UINT64_MAX;
	return answer.flags;
}

static inline int do_wait(struct session *session, uint64_t offset, uint32_t expected,
			  int64_t timeout)
{
	struct aviary_wait wait = { .offset = offset, .timeout = timeout, .expected = expected };

	return ioctl(session->fd, AVIARY_WAIT, &wait) ? errno : 0;
}

static inline int do_wake(struct session *session, uint64_t offset, uint32_t flags)
{
	struct aviary_wake wake = { .offset = offset, .flags = flags };

	return ioctl(session->fd, AVIARY_WAKE, &wake) ? errno : 0;
}

static inline int do_pin(struct session *session, const void *address, uint64_t length,
			 uint64_t offset, uint32_t flags)
{
	struct aviary_pin pin = {
		.address = (uintptr_t)address, .length = length, .offset = offset, .flags = flags
	};

	return ioctl(session->fd, AVIARY_PIN, &pin) ? errno : 0;
}

static inline int do_range(struct session *session, unsigned long command, uint64_t offset,
			   uint64_t length)
{
	struct aviary_range range = { .offset = offset, .length = length };

	return ioctl(session->fd, command, &range) ? errno : 0;
}

static inline struct aviary_counters counters(struct session *session)
{
	struct aviary_counters counters = { 0 };

	ioctl(session->fd, AVIARY_COUNTERS, &counters);
	return counters;
}

static inline uint32_t *word_at(struct session *session, uint64_t offset)
{
	return (uint32_t *)(session->arena + offset);
}

/* One of the driver's totals; -1 if it cannot be read. */
static inline long total(const char *name)
{
	char path[128];
	long value = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/misc/aviary/%s", name);
	file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%ld", &value) != 1)
			value = -1;
		fclose(file);
	}
	return value;
}

/* True if within the given time no session, chunk, pin or request is left. */
static inline bool nothing_left(unsigned int ms)
{
	uint64_t until = now_us() + ms * 1000ULL;

	while (total("sessions") || total("chunks") || total("pages_pinned") ||
	       total("requests")) {
		if (now_us() > until) {
			printf("left: %ld sessions, %ld chunks, %ld pages, %ld requests\n",
			       total("sessions"), total("chunks"), total("pages_pinned"),
			       total("requests"));
			return false;
		}
		sleep_ms(10);
	}
	return true;
}

#endif
