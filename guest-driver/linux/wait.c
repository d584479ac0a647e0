// SPDX-License-Identifier: GPL-2.0
/* Sleeping on words of the arena. */

#include <linux/hash.h>
#include <linux/hrtimer.h>
#include <linux/sched.h>

#include "driver.h"

static wait_queue_head_t *bucket_of(struct aviary_session *session, u64 offset)
{
	return &session->sleepers[hash_64(offset >> 2, AVIARY_BUCKETS_BITS)];
}

/**
 * aviary_wake - wakes the sleepers at a word, which check it again
 * @session: the session
 * @offset: offset of the word
 *
 * May be called in interrupts. Other sleepers of the bucket check their words, too, and sleep on.
 *
 * Return: true if there may have been a sleeper.
 */
bool aviary_wake(struct aviary_session *session, u64 offset)
{
	wait_queue_head_t *bucket = bucket_of(session, offset);

	if (!wq_has_sleeper(bucket))
		return false;
	wake_up_all(bucket);
	return true;
}

void aviary_wake_all(struct aviary_session *session)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(session->sleepers); i++)
		wake_up_all(&session->sleepers[i]);
}

static bool may_sleep(struct aviary_session *session, const u32 *word, u32 expected)
{
	return READ_ONCE(*word) == expected && !aviary_session_over(session);
}

static long word_wait(struct aviary_session *session, const struct aviary_wait *wait,
		      const u32 *word)
{
	ktime_t timeout = wait->timeout < 0 ? KTIME_MAX : ns_to_ktime(wait->timeout);
	int err;

	if (aviary_session_over(session))
		return -EPIPE;
	if (!may_sleep(session, word, wait->expected))
		return 0;
	if (!timeout)
		return -ETIMEDOUT;
	atomic64_inc(&session->sleeps);
	err = wait_event_interruptible_hrtimeout(*bucket_of(session, wait->offset),
						 !may_sleep(session, word, wait->expected),
						 timeout);
	if (aviary_session_over(session))
		return -EPIPE;
	if (err == -ETIME)
		return -ETIMEDOUT;
	/* Not restarted: the caller checks its word after each signal. */
	return err ? -EINTR : 0;
}

/**
 * aviary_wait - sleeps while a word has a value
 * @session: the session
 * @wait: the word, its value, and the timeout
 *
 * Return: 0 if the word has another value, -ETIMEDOUT, -EINTR after a signal, -EPIPE once the
 * session is over, -EFAULT if there is no memory of the arena at the word.
 */
long aviary_wait(struct aviary_session *session, const struct aviary_wait *wait)
{
	struct page *page;
	long err;

	if ((wait->offset & 3) || wait->offset >= session->arena || wait->reserved)
		return -EINVAL;
	if (aviary_session_over(session))
		return -EPIPE;
	page = aviary_chunk_page(session, wait->offset);
	if (!page)
		return -EFAULT;
	/* The page stays allocated as long as a thread sleeps, also if the chunk is released. */
	err = word_wait(session, wait, page_address(page) + offset_in_page(wait->offset));
	put_page(page);
	return err;
}
