// SPDX-License-Identifier: GPL-2.0
/* Ends of processes, API servers, the device and the driver: nothing may be left behind. */

#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define CYCLES	300

static bool session_is_over(struct session *s)
{
	struct pollfd pollfd = { .fd = s->fd, .events = POLLRDHUP };
	char byte;

	return poll(&pollfd, 1, 10000) == 1 && (pollfd.revents & POLLHUP) &&
	       (pollfd.revents & POLLRDHUP) && read(s->fd, &byte, 1) == 0;
}

struct sleeper {
	struct session *session;
	int result;
	pthread_t thread;
};

static void *sleep_long(void *argument)
{
	struct sleeper *sleeper = argument;

	sleeper->result = do_wait(sleeper->session, 64, 1, -1);
	return NULL;
}

static void sleeper_start(struct sleeper *sleeper, struct session *s)
{
	*sleeper = (struct sleeper){ .session = s, .result = -1 };
	*word_at(s, 64) = 1;
	pthread_create(&sleeper->thread, NULL, sleep_long, sleeper);
	while (!counters(s).sleeps)
		sleep_ms(1);
}

/* Expected after any end: errors, no signals, no memory lost, no thread left waiting. */
static void check_over(struct session *s, struct sleeper *sleeper)
{
	pthread_join(sleeper->thread, NULL);
	CHECK(sleeper->result == EPIPE, "%d", sleeper->result);
	CHECK(session_is_over(s), "end of the stream");
	CHECK(tell(s, ECHO, 0, 0, 0) == -1 && errno == EPIPE, "write");
	CHECK(do_wait(s, 64, 1, -1) == EPIPE, "sleep");
	CHECK(do_wake(s, 64, 0) == EPIPE, "doorbell");
	CHECK(do_wake(s, 64, AVIARY_WAKE_LOCAL) == 0, "wake");
	CHECK(do_pin(s, s->arena, 4096, 50 * CHUNK, 0) == EPIPE, "pin");
	CHECK(do_range(s, AVIARY_RELEASE, CHUNK, CHUNK) == EPIPE, "release");
	CHECK(s->arena[3 * CHUNK] == 0x33, "what was touched stays");
	CHECK(s->arena[20 * CHUNK + 5] == 0, "what was not is zeros");
	s->arena[20 * CHUNK + 5] = 8;
	CHECK(s->arena[20 * CHUNK + 5] == 8, "and memory");
	CHECK(!madvise(s->arena + 3 * CHUNK, 4096, MADV_DONTNEED) && !s->arena[3 * CHUNK], "zeros");
}

static void start(struct session *s, struct sleeper *sleeper)
{
	CHECK(!session_start(s, ARENA), "start");
	s->arena[3 * CHUNK] = 0x33;
	sleeper_start(sleeper, s);
}

static void test_hang_up(void)
{
	struct sleeper sleeper;
	struct session s;
	void *data = aligned_alloc(4096, 65536);

	start(&s, &sleeper);
	CHECK(!do_pin(&s, data, 65536, 100 * CHUNK, 1), "pin");
	CHECK(total("pages_pinned") == 16, "%ld", total("pages_pinned"));
	CHECK(!tell(&s, HANG_UP, 0, 0, 0), "tell");
	check_over(&s, &sleeper);
	/* The check runs before the file is closed. */
	CHECK(nothing_left(5000), "of a session whose API server has gone");
	session_close(&s);
	free(data);
}

static void test_end(void)
{
	struct sleeper sleeper;
	struct session s;

	start(&s, &sleeper);
	CHECK(!ioctl(s.fd, AVIARY_END), "end");
	check_over(&s, &sleeper);
	CHECK(nothing_left(5000), "of a session that was ended");
	session_close(&s);
}

/*
 * A child inherits the file, but neither the memory nor any rights; the session ends with the
 * parent.
 */
static void test_fork(void)
{
	int pipes[2], status, word = 0;
	struct session s;
	pid_t parent, child;

	CHECK(!pipe(pipes), "pipe");
	parent = fork();
	if (!parent) {
		if (session_start(&s, ARENA))
			_exit(1);
		*word_at(&s, 64) = 1;
		child = fork();
		if (!child) {
			unsigned char in_core;

			word |= mincore(s.arena, 4096, &in_core) == -1 && errno == ENOMEM ? 1 : 0;
			word |= do_wait(&s, 64, 1, 0) == EPERM ? 2 : 0;
			word |= tell(&s, ECHO, 0, 0, 0) == -1 && errno == EPERM ? 4 : 0;
			word |= mmap(NULL, CHUNK, 3, MAP_SHARED, s.fd, 0) == MAP_FAILED &&
				errno == EPERM ? 8 : 0;
			word |= ioctl(s.fd, AVIARY_END) == -1 && errno == EPERM ? 16 : 0;
			/* The parent exits, and this process keeps the file. */
			word |= session_is_over(&s) ? 32 : 0;
			if (write(pipes[1], &word, sizeof(word)) != sizeof(word))
				_exit(1);
			pause();
		}
		/* The end of a child does not end the session. */
		if (!fork())
			_exit(0);
		wait(&status);
		sleep_ms(200);
		status = ask(&s, ECHO, 0, 0, 5) == 5 ? 0 : 2;
		if (write(pipes[1], &child, sizeof(child)) != sizeof(child))
			_exit(1);
		_exit(status);
	}
	CHECK(read(pipes[0], &child, sizeof(child)) == sizeof(child), "pid");
	CHECK(waitpid(parent, &status, 0) == parent && status == 0, "status %#x", status);
	CHECK(read(pipes[0], &word, sizeof(word)) == sizeof(word), "the child's findings");
	CHECK(word == 63, "%#x", word);
	CHECK(nothing_left(5000), "while a child has the file");
	kill(child, SIGKILL);
	close(pipes[0]);
	close(pipes[1]);
}

static void *work(void *argument)
{
	struct session *s = argument;
	unsigned int seed = (uintptr_t)&seed >> 8;
	uint8_t *data = mmap(NULL, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (;;) {
		uint64_t chunk = rand_r(&seed) % 100;

		switch (rand_r(&seed) % 5) {
		case 0:
			s->arena[chunk * CHUNK + rand_r(&seed) % CHUNK] = 1;
			break;
		case 1:
			do_range(s, AVIARY_RELEASE, chunk * CHUNK, 3 * CHUNK);
			break;
		case 2:
			if (!do_pin(s, data, 1 << 20, (128 + chunk) * CHUNK, 1) &&
			    rand_r(&seed) % 2)
				do_range(s, AVIARY_UNPIN, (128 + chunk) * CHUNK, 1 << 20);
			break;
		case 3:
			do_wait(s, 64, 1, 1000000);
			break;
		case 4:
			do_wake(s, 64, rand_r(&seed) % 2);
			break;
		}
	}
	return NULL;
}

/* Processes are killed at any point of their work. */
static void test_kill(void)
{
	unsigned int seed = 1, i, j;
	struct session s;
	int status, signals = 0;
	pthread_t thread;
	pid_t child;

	for (i = 0; i < CYCLES; i++) {
		child = fork();
		if (!child) {
			if (session_open(&s, ARENA) || (i % 3 && greet(&s)))
				_exit(1);
			for (j = 0; j < 3; j++)
				pthread_create(&thread, NULL, work, &s);
			work(&s);
		}
		usleep(rand_r(&seed) % 30000);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		signals += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	}
	CHECK(signals == CYCLES, "%d of %d by this signal", signals, CYCLES);
	CHECK(nothing_left(20000), "of processes that were killed");
}

static void test_open_close(void)
{
	struct session s;
	int i, good = 0;

	for (i = 0; i < 1000; i++) {
		if (session_open(&s, ARENA))
			continue;
		*word_at(&s, 0) = 1;
		good += i % 2 || !greet(&s);
		session_close(&s);
	}
	CHECK(good == 1000, "%d", good);
	CHECK(nothing_left(10000), "of 1000 sessions");
}

static void *touch(void *argument)
{
	struct session *s = argument;

	s->arena[30 * CHUNK] = 1;
	return NULL;
}

/* A process is killed while the device holds its requests. */
static void test_kill_waiting(void)
{
	struct session s;
	pthread_t thread;
	uint64_t before;
	int status, i;
	pid_t child;

	child = fork();
	if (!child) {
		if (session_start(&s, ARENA))
			_exit(1);
		ask(&s, SLOW, 0, 0, 1500);
		for (i = 0; i < 8; i++)
			pthread_create(&thread, NULL, touch, &s);
		touch(&s);
		_exit(0);
	}
	while (total("chunks") < 1)
		sleep_ms(1);
	sleep_ms(200);
	before = now_us();
	kill(child, SIGKILL);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "status %#x", status);
	CHECK(now_us() - before < 700000, "killed within %llu us",
	      (unsigned long long)(now_us() - before));
	CHECK(total("chunks") == 1, "the device still has it: %ld", total("chunks"));
	CHECK(nothing_left(10000), "once it answered");
}

/* A device answers later than the driver's timeout, and then returns. */
static void test_stopped(void)
{
	struct sleeper sleeper;
	struct session s;
	uint64_t before = now_us();
	pthread_t thread;

	start(&s, &sleeper);
	CHECK(ask(&s, STOP_DEVICE, 0, 0, 6000) == 0 || true, "stop");
	/* The access happens while the device is stopped. */
	pthread_create(&thread, NULL, touch, &s);
	check_over(&s, &sleeper);
	pthread_join(thread, NULL);
	printf("a stopped device was lost after %llu ms\n",
	       (unsigned long long)(now_us() - before) / 1000);
	CHECK(now_us() - before < 4500000, "in time");
	CHECK(open_device() == -1 && errno == ENODEV, "open");
	CHECK(total("chunks") > 0, "what the device may still use stays");
	session_close(&s);
	sleep_ms(4000);
	CHECK(nothing_left(5000), "after it came back");
	CHECK(!session_start(&s, ARENA), "usable again");
	CHECK(ask(&s, ECHO, 0, 0, 5) == 5, "echo");
	session_close(&s);
}

static bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	close(fd);
	return good;
}

/* The device is removed while it is in use. */
static void test_unplug(void)
{
	const char *driver = "/sys/bus/virtio/drivers/aviary";
	char path[100], name[16] = "";
	struct sleeper sleeper;
	struct session s;
	pid_t child;
	int i, fd = -1;

	for (i = 0; i < 16 && fd < 0; i++) {
		snprintf(name, sizeof(name), "virtio%d", i);
		snprintf(path, sizeof(path), "%s/%s", driver, name);
		fd = open(path, O_RDONLY);
	}
	CHECK(fd >= 0, "the device's name");
	close(fd);

	for (i = 0; i < 10; i++) {
		child = fork();
		if (!child) {
			pthread_t thread;

			if (session_start(&s, ARENA))
				_exit(1);
			pthread_create(&thread, NULL, work, &s);
			work(&s);
		}
		start(&s, &sleeper);
		sleep_ms(100);
		snprintf(path, sizeof(path), "%s/unbind", driver);
		CHECK(write_file(path, name), "unbind");
		check_over(&s, &sleeper);
		/* A thread may have been about to pin, hence the wait. */
		CHECK(nothing_left(2000), "without a device");
		CHECK(open_device() == -1 && errno == ENODEV, "open");
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		snprintf(path, sizeof(path), "%s/bind", driver);
		CHECK(write_file(path, name), "bind");
		session_close(&s);
	}
	CHECK(!session_start(&s, ARENA), "usable again");
	CHECK(ask(&s, ECHO, 0, 0, 5) == 5, "echo");
	session_close(&s);
	CHECK(nothing_left(5000), "after all");
}

int main(void)
{
	test_hang_up();
	test_end();
	test_fork();
	test_open_close();
	test_kill();
	test_kill_waiting();
	test_unplug();
	test_stopped();
	return verdict("death");
}
