// SPDX-License-Identifier: GPL-2.0
/*
 * The device loses its state, as after a pause or suspend of the VM, and at last it dies.
 *
 * QEMU does not take a device back whose process has died.
 */

#include "check.h"

#include <pthread.h>

static void *touch_all(void *argument)
{
	struct session *s = argument;
	unsigned int i;

	for (i = 0; i < s->size / CHUNK; i++) {
		s->arena[i * CHUNK] = 1;
		do_wait(s, 0, 1, 1000000);
	}
	return NULL;
}

/* Milliseconds until the session is over. */
static unsigned int end_by(struct session *s, enum command command, uint64_t flags)
{
	struct pollfd pollfd = { .fd = s->fd, .events = POLLRDHUP };
	uint64_t before = now_us();
	pthread_t threads[4];
	int i;

	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, touch_all, s);
	tell(s, command, 0, 0, flags);
	CHECK(poll(&pollfd, 1, 10000) == 1 && pollfd.revents & POLLHUP, "%#x", pollfd.revents);
	before = now_us() - before;
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return before / 1000;
}

static void test_paused(int round)
{
	uint64_t before;
	struct session s;
	int fd = -1;

	CHECK(!session_start(&s, ARENA), "round %d", round);
	printf("a pause of 100 ms ended a session after %u ms\n", end_by(&s, PAUSE_VM, 100));
	CHECK(nothing_left(10000), "of a device that has forgotten it");
	session_close(&s);
	before = now_us();
	while (fd < 0 && now_us() - before < 10000000) {
		fd = open_device();
		sleep_ms(10);
	}
	CHECK(fd >= 0, "usable again");
	close(fd);
	CHECK(!session_start(&s, ARENA), "start");
	CHECK(ask(&s, ECHO, 0, 0, 5) == 5, "echo");
	session_close(&s);
	CHECK(nothing_left(5000), "of the next one");
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	int err = fd < 0 || write(fd, text, strlen(text)) < 0 ? errno : 0;

	close(fd);
	return err;
}

/* A machine stays awake while sessions are open; otherwise it finds the device again. */
static void test_suspended(void)
{
	struct session s;

	if (access("/sys/power/state", W_OK)) {
		printf("this kernel does not suspend\n");
		return;
	}
	CHECK(!session_start(&s, ARENA), "start");
	*word_at(&s, CHUNK) = 5;
	CHECK(write_file("/sys/power/state", "mem") == EBUSY, "with a session");
	CHECK(ask(&s, LOAD, CHUNK, 0, 0) == 5, "it goes on");
	session_close(&s);
	CHECK(nothing_left(5000), "nothing left");
	CHECK(write_file("/sys/class/rtc/rtc0/wakealarm", "+3") == 0, "alarm");
	CHECK(write_file("/sys/power/state", "mem") == 0, "suspended");
	CHECK(!session_start(&s, ARENA), "start");
	CHECK(ask(&s, ECHO, 0, 0, 5) == 5, "echo");
	session_close(&s);
	CHECK(nothing_left(5000), "nothing left");
}

/* Memory that such a device may still use is kept until the driver is unbound. */
static void test_killed(void)
{
	struct session s;

	CHECK(!session_start(&s, ARENA), "start");
	printf("a killed device was lost after %u ms\n", end_by(&s, KILL_DEVICE, 0));
	session_close(&s);
	CHECK(open_device() == -1 && errno == ENODEV, "open");
	CHECK(total("sessions") == 1, "%ld", total("sessions"));
}

int main(void)
{
	int i;

	for (i = 0; i < 5; i++)
		test_paused(i);
	test_suspended();
	test_killed();
	return verdict("reset");
}
