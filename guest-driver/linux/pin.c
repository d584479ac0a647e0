// SPDX-License-Identifier: GPL-2.0
/* Memory of the application that is mapped into the arena without a copy. */

#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "compat.h"
#include "driver.h"

/* Number of pages that are pinned in one call. */
#define BATCH	2048

struct pin {
	struct kref kref;
	struct list_head link;
	struct aviary_session *session;
	struct mm_struct *mm;	/* the address space that the pages are charged to */
	u64 offset;
	u64 length;
	bool busy;		/* being mapped or unmapped */
	bool writable;
	unsigned long count;	/* pages that are pinned */
	struct page **pages;
};

static unsigned long pin_pages(const struct pin *pin)
{
	return pin->length >> PAGE_SHIFT;
}

/* Called when the host no longer uses the pages. */
static void pin_free(struct kref *kref)
{
	struct pin *pin = container_of(kref, struct pin, kref);

	/* The host may have written to the pages without the kernel's knowledge. */
	unpin_user_pages_dirty_lock(pin->pages, pin->count, pin->writable);
	account_locked_vm(pin->mm, pin_pages(pin), false);
	atomic64_sub(pin->count, &pin->session->pages_pinned);
	atomic_long_sub(pin->count, &aviary_totals.pages_pinned);
	mmdrop(pin->mm);
	kvfree(pin->pages);
	kfree(pin);
}

static void pin_put(struct pin *pin)
{
	kref_put(&pin->kref, pin_free);
}

/* A pin that is charged and has no pages yet. */
static struct pin *pin_new(struct aviary_session *session, const struct aviary_pin *wanted)
{
	struct pin *pin;
	int err = -ENOMEM;

	pin = kzalloc(sizeof(*pin), GFP_KERNEL_ACCOUNT);
	if (!pin)
		return ERR_PTR(err);
	kref_init(&pin->kref);
	pin->session = session;
	pin->offset = wanted->offset;
	pin->length = wanted->length;
	pin->writable = wanted->flags & AVIARY_PIN_WRITE;
	pin->busy = true;
	/* Charged first, so that a request beyond the limit costs nothing. */
	err = account_locked_vm(current->mm, pin_pages(pin), true);
	if (err)
		goto free;
	pin->pages = kvcalloc(pin_pages(pin), sizeof(*pin->pages), GFP_KERNEL_ACCOUNT);
	if (!pin->pages) {
		account_locked_vm(current->mm, pin_pages(pin), false);
		err = -ENOMEM;
		goto free;
	}
	mmgrab(current->mm);
	pin->mm = current->mm;
	return pin;
free:
	kfree(pin);
	return ERR_PTR(err);
}

static int pin_some(u64 address, unsigned long count, bool writable, struct page **pages)
{
	int pinned;

	if (writable)
		return pin_user_pages_fast(address, count, FOLL_LONGTERM | FOLL_WRITE, pages);
	pinned = pin_user_pages_fast(address, count, FOLL_LONGTERM | AVIARY_GUP_READ, pages);
	/* A read-only shared mapping needs no private copies. */
	if (pinned == -EFAULT && AVIARY_GUP_READ)
		pinned = pin_user_pages_fast(address, count, FOLL_LONGTERM, pages);
	return pinned;
}

static int pin_all(struct pin *pin, u64 address)
{
	while (pin->count < pin_pages(pin)) {
		unsigned long wanted = min(pin_pages(pin) - pin->count, (unsigned long)BATCH);
		int pinned;

		if (fatal_signal_pending(current))
			return -EINTR;
		pinned = pin_some(address + ((u64)pin->count << PAGE_SHIFT), wanted, pin->writable,
				  pin->pages + pin->count);
		if (pinned <= 0)
			return pinned ? pinned : -EFAULT;
		pin->count += pinned;
		atomic64_add(pinned, &pin->session->pages_pinned);
		atomic_long_add(pinned, &aviary_totals.pages_pinned);
	}
	return 0;
}

/* Enters the pin into the session's list; from then on the session's end unpins it. */
static int pin_publish(struct pin *pin)
{
	struct aviary_session *session = pin->session;
	struct pin *other;
	int err = 0;

	mutex_lock(&session->pin_lock);
	if (aviary_session_over(session))
		err = -EPIPE;
	list_for_each_entry(other, &session->pins, link) {
		if (pin->offset < other->offset + other->length &&
		    other->offset < pin->offset + pin->length)
			err = -EEXIST;
	}
	if (!err) {
		kref_get(&pin->kref);
		list_add(&pin->link, &session->pins);
	}
	mutex_unlock(&session->pin_lock);
	return err;
}

/* Removes the pin from the list, unless the session's end has done so. */
static void pin_withdraw(struct pin *pin)
{
	bool listed;

	mutex_lock(&pin->session->pin_lock);
	listed = !list_empty(&pin->link);
	list_del_init(&pin->link);
	mutex_unlock(&pin->session->pin_lock);
	if (listed)
		pin_put(pin);
}

/* Maps the pages. `*mapped`: number of pages that the API server maps, also after an error. */
static int pin_map(struct pin *pin, unsigned long *mapped)
{
	u32 flags = AVIARY_MAP_APPLICATION | (pin->writable ? AVIARY_MAP_WRITE : 0);
	struct aviary_request *request;
	unsigned long taken;
	int err = 0;

	for (*mapped = 0; *mapped < pin->count && !err; ) {
		request = aviary_map_request(pin->session,
					     pin->offset + ((u64)*mapped << PAGE_SHIFT),
					     pin->pages + *mapped, pin->count - *mapped, flags,
					     &taken);
		err = aviary_request_call(pin->session, request);
		if (!err)
			*mapped += taken;
	}
	return err;
}

/* Unmaps a pin; it leaves the list only when the API server no longer maps it. */
static int pin_leave(struct pin *pin, unsigned long mapped)
{
	int err = 0;

	if (mapped)
		err = aviary_unmap(pin->session, pin->offset, (u64)mapped << PAGE_SHIFT);
	if (err)
		aviary_session_end(pin->session);
	else
		pin_withdraw(pin);
	return err;
}

static bool pin_valid(struct aviary_session *session, const struct aviary_pin *pin)
{
	u64 largest = aviary_session_largest(session);

	return pin->length && IS_ALIGNED(pin->address | pin->length | pin->offset, PAGE_SIZE) &&
	       pin->address + pin->length > pin->address && pin->address <= ULONG_MAX &&
	       pin->length <= largest && pin->offset <= largest - pin->length &&
	       !(pin->flags & ~AVIARY_PIN_WRITE) && !pin->reserved;
}

/* True if the range has chunks, which are registered or will be. */
static bool range_has_chunks(struct aviary_session *session, u64 offset, u64 length)
{
	unsigned long index = offset / AVIARY_CHUNK;

	return xa_find(&session->chunks, &index, (offset + length - 1) / AVIARY_CHUNK, XA_PRESENT);
}

/**
 * aviary_pin - maps memory of the caller into the arena
 * @session: the session
 * @wanted: the memory, and its offset in the arena
 *
 * Return: 0; -ENOMEM also beyond RLIMIT_MEMLOCK; -EEXIST if the offset is in use; the host's
 * own error if it cannot map the memory, which then stays unchanged.
 */
long aviary_pin(struct aviary_session *session, const struct aviary_pin *wanted)
{
	unsigned long mapped;
	struct pin *pin;
	int err;

	if (!pin_valid(session, wanted))
		return -EINVAL;
	if (aviary_session_over(session))
		return -EPIPE;
	if (!READ_ONCE(session->greeted))
		return -ENOTCONN;
	if (range_has_chunks(session, wanted->offset, wanted->length))
		return -EEXIST;
	pin = pin_new(session, wanted);
	if (IS_ERR(pin))
		return PTR_ERR(pin);
	err = pin_all(pin, wanted->address);
	if (!err)
		err = pin_publish(pin);
	if (err)
		goto put;
	err = pin_map(pin, &mapped);
	/*
	 * The process was killed or the device lost: the pages stay until the session's end is
	 * confirmed.
	 */
	if (!err) {
		atomic64_add(pin->length, &session->bytes_pinned);
		WRITE_ONCE(pin->busy, false);
	} else if (err == -EINTR || aviary_session_over(session)) {
		aviary_session_end(session);
	} else {
		pin_leave(pin, mapped);
	}
put:
	pin_put(pin);
	return err;
}

/* The pin of exactly this range, reserved for the caller, which alone may remove it. */
static struct pin *pin_find(struct aviary_session *session, const struct aviary_range *range)
{
	struct pin *pin, *found = NULL;

	mutex_lock(&session->pin_lock);
	list_for_each_entry(pin, &session->pins, link) {
		if (pin->offset == range->offset && pin->length == range->length &&
		    !READ_ONCE(pin->busy)) {
			WRITE_ONCE(pin->busy, true);
			kref_get(&pin->kref);
			found = pin;
			break;
		}
	}
	mutex_unlock(&session->pin_lock);
	return found;
}

/* Unpins the range of one pin, as a whole. */
long aviary_unpin(struct aviary_session *session, const struct aviary_range *range)
{
	struct pin *pin;
	int err;

	if (aviary_session_over(session))
		return -EPIPE;
	pin = pin_find(session, range);
	if (!pin)
		return -ENOENT;
	err = pin_leave(pin, pin->count);
	pin_put(pin);
	return err;
}

/* Called when the session is over and the device uses none of its memory. */
void aviary_pins_free(struct aviary_session *session)
{
	struct pin *pin;

	for (;;) {
		mutex_lock(&session->pin_lock);
		pin = list_first_entry_or_null(&session->pins, struct pin, link);
		if (pin)
			list_del_init(&pin->link);
		mutex_unlock(&session->pin_lock);
		if (!pin)
			break;
		pin_put(pin);
	}
}
