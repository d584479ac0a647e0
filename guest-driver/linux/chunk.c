// SPDX-License-Identifier: GPL-2.0
/*
 * The arena's memory: chunks that are allocated at the first access.
 *
 * The table's lock guards the states of chunks; chunk_lock keeps a chunk alive while it is
 * examined. A process that is killed while it waits leaves its chunks in their states: they are
 * freed with its session.
 */

#include <linux/slab.h>

#include "driver.h"

#define CHUNK_ORDER	get_order(AVIARY_CHUNK)

/* Entry of the table while pages are allocated. */
#define MAKING		xa_mk_value(0)

/* Pages that a process still maps live until it unmaps them. */
static void chunk_put(struct aviary_chunk *chunk)
{
	unsigned int i;

	for (i = 0; i < AVIARY_CHUNK_PAGES && chunk->pages[i]; i++)
		put_page(chunk->pages[i]);
	kfree(chunk);
}

static struct aviary_chunk *chunk_alloc(void)
{
	struct aviary_chunk *chunk;
	struct page *first;
	unsigned int i;

	chunk = kzalloc(struct_size(chunk, pages, AVIARY_CHUNK_PAGES), GFP_KERNEL_ACCOUNT);
	if (!chunk)
		return NULL;
	/* Contiguous pages need one mapping in the device. Not worth a reclaim or a retry. */
	first = alloc_pages(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN | __GFP_NORETRY,
			    CHUNK_ORDER);
	if (first)
		split_page(first, CHUNK_ORDER);
	for (i = 0; i < AVIARY_CHUNK_PAGES; i++) {
		chunk->pages[i] = first ? first + i : alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!chunk->pages[i]) {
			chunk_put(chunk);
			return NULL;
		}
	}
	return chunk;
}

/* Called in interrupts. */
static void chunk_mapped(struct aviary_device *device, struct aviary_request *request)
{
	struct aviary_session *session = request->session;
	struct aviary_chunk *chunk;
	unsigned long flags;

	if (!request->error) {
		xa_lock_irqsave(&session->chunks, flags);
		chunk = xa_load(&session->chunks, request->index);
		/* Not if the session was closed and freed before this answer arrived. */
		if (chunk && !xa_is_value(chunk) && chunk->state == AVIARY_CHUNK_PENDING)
			chunk->state = AVIARY_CHUNK_READY;
		xa_unlock_irqrestore(&session->chunks, flags);
		wake_up_all(&session->chunk_wait);
		return;
	}
	/* -ENODEV: the device is gone, or knows of the end already. */
	if (!aviary_session_over(session) && request->error != -ENODEV)
		pr_warn_ratelimited("session %u ends: the host refused memory at %#lx: error %d\n",
				    session->number, request->index * AVIARY_CHUNK,
				    -request->error);
	aviary_session_end(session);
}

static struct aviary_request *chunk_request(struct aviary_session *session, unsigned long index,
					    struct aviary_chunk *chunk)
{
	struct aviary_request *request;
	unsigned long taken;

	/* The device takes at least as many extents as a chunk has pages. */
	request = aviary_map_request(session, (u64)index * AVIARY_CHUNK, chunk->pages,
				     AVIARY_CHUNK_PAGES, AVIARY_MAP_WRITE, &taken);
	if (!request)
		return NULL;
	request->index = index;
	request->answered = chunk_mapped;
	return request;
}

static void chunk_count(struct aviary_session *session, int change)
{
	atomic64_add(change, &session->chunks_now);
	atomic_long_add(change, &aviary_totals.chunks);
}

/* Enters the chunk into the table, unless the session is over. */
static int chunk_publish(struct aviary_session *session, unsigned long index,
			 struct aviary_chunk *chunk)
{
	int err = 0;

	xa_lock_irq(&session->chunks);
	if (session->over) {
		__xa_erase(&session->chunks, index);
		err = -EPIPE;
	} else {
		chunk->registered = session->greeted;
		chunk->state = chunk->registered ? AVIARY_CHUNK_PENDING : AVIARY_CHUNK_LOCAL;
		/* Replaces an existing entry: no memory is needed. */
		__xa_store(&session->chunks, index, chunk, GFP_ATOMIC);
		chunk_count(session, 1);
		/* Read under the lock, because registration may change afterwards. */
		err = chunk->registered;
	}
	xa_unlock_irq(&session->chunks);
	wake_up_all(&session->chunk_wait);
	return err;
}

/**
 * aviary_chunk_make - makes a chunk, registered if the API server was greeted
 * @session: the session
 * @index: index of the chunk
 *
 * Return: 0, also if another thread makes it or the session is over: the caller checks again.
 * -ENOMEM, or -EINTR if the process was killed.
 */
int aviary_chunk_make(struct aviary_session *session, unsigned long index)
{
	struct aviary_request *request = NULL;
	struct aviary_chunk *chunk;
	int err;

	err = xa_insert_irq(&session->chunks, index, MAKING, GFP_KERNEL);
	if (err)
		return err == -EBUSY ? 0 : err;
	chunk = chunk_alloc();
	if (chunk)
		request = chunk_request(session, index, chunk);
	if (!request) {
		xa_erase_irq(&session->chunks, index);
		wake_up_all(&session->chunk_wait);
		if (chunk)
			chunk_put(chunk);
		return -ENOMEM;
	}
	err = chunk_publish(session, index, chunk);
	if (err > 0) {
		aviary_request_send(session->device, request);
		err = aviary_request_wait(request);
	} else if (err < 0) {
		chunk_put(chunk);
	}
	aviary_request_put(request);
	return err == -EINTR ? err : 0;
}

enum aviary_chunk_state aviary_chunk_state(struct aviary_session *session, unsigned long index)
{
	enum aviary_chunk_state state;
	struct aviary_chunk *chunk;

	xa_lock_irq(&session->chunks);
	chunk = xa_load(&session->chunks, index);
	if (!chunk)
		state = AVIARY_CHUNK_ABSENT;
	else if (xa_is_value(chunk))
		state = AVIARY_CHUNK_MAKING;
	else
		state = chunk->state;
	xa_unlock_irq(&session->chunks);
	return state;
}

/* A page of a chunk that a process may have accessed, with a reference. */
struct page *aviary_chunk_page(struct aviary_session *session, u64 offset)
{
	struct aviary_chunk *chunk;
	struct page *page = NULL;

	xa_lock_irq(&session->chunks);
	chunk = xa_load(&session->chunks, offset / AVIARY_CHUNK);
	if (chunk && !xa_is_value(chunk) && chunk->state != AVIARY_CHUNK_LEAVING) {
		page = chunk->pages[offset % AVIARY_CHUNK / PAGE_SIZE];
		get_page(page);
	}
	xa_unlock_irq(&session->chunks);
	return page;
}

/* The first chunk from `*index` on in `state`, which becomes `new`. Called with chunk_lock. */
static struct aviary_chunk *chunk_next(struct aviary_session *session, unsigned long *index,
				       unsigned long last, enum aviary_chunk_state state,
				       enum aviary_chunk_state new)
{
	struct aviary_chunk *chunk, *found = NULL;

	xa_lock_irq(&session->chunks);
	for (chunk = xa_find(&session->chunks, index, last, XA_PRESENT); chunk;
	     chunk = xa_find_after(&session->chunks, index, last, XA_PRESENT)) {
		if (!xa_is_value(chunk) && chunk->state == state) {
			chunk->state = new;
			found = chunk;
			break;
		}
	}
	xa_unlock_irq(&session->chunks);
	return found;
}

/**
 * aviary_chunks_register - registers all chunks, once the API server was greeted
 * @session: the session, with its write_lock held
 */
int aviary_chunks_register(struct aviary_session *session)
{
	struct aviary_request *request;
	struct aviary_chunk *chunk;
	unsigned long index = 0;
	int err = 0;

	xa_lock_irq(&session->chunks);
	session->greeted = true;
	xa_unlock_irq(&session->chunks);

	while (!err) {
		request = NULL;
		mutex_lock(&session->chunk_lock);
		chunk = chunk_next(session, &index, ULONG_MAX, AVIARY_CHUNK_LOCAL,
				   AVIARY_CHUNK_PENDING);
		if (chunk) {
			chunk->registered = true;
			request = chunk_request(session, index, chunk);
		}
		mutex_unlock(&session->chunk_lock);
		if (!chunk)
			break;
		err = aviary_request_call(session, request);
	}
	return err;
}

static bool range_valid(struct aviary_session *session, const struct aviary_range *range)
{
	return range->length && IS_ALIGNED(range->offset | range->length, AVIARY_CHUNK) &&
	       range->offset < session->arena && range->length <= session->arena - range->offset;
}

/* Called with chunk_lock. */
static void chunk_free(struct aviary_session *session, unsigned long index,
		       struct aviary_chunk *chunk)
{
	xa_erase_irq(&session->chunks, index);
	chunk_count(session, -1);
	chunk_put(chunk);
}

/* True if the chunk at `index` leaves and is registered with the API server. */
static bool leaves_registered(struct aviary_session *session, unsigned long index)
{
	struct aviary_chunk *chunk = xa_load(&session->chunks, index);

	return chunk && !xa_is_value(chunk) && chunk->state == AVIARY_CHUNK_LEAVING &&
	       chunk->registered;
}

/* Sends one UNMAP for each run of adjacent chunks. */
static int chunks_unmap(struct aviary_session *session, unsigned long first, unsigned long last)
{
	unsigned long index, end;
	int err = 0;

	for (index = first; index <= last && !err; index = end + 1) {
		mutex_lock(&session->chunk_lock);
		while (index <= last && !leaves_registered(session, index))
			index++;
		for (end = index; end <= last && leaves_registered(session, end); end++)
			;
		mutex_unlock(&session->chunk_lock);
		if (index <= last)
			err = aviary_unmap(session, (u64)index * AVIARY_CHUNK,
					   (u64)(end - index) * AVIARY_CHUNK);
	}
	return err;
}

/* Releases the chunks of a range. Called with release_lock, so no other call releases them. */
static long chunks_release(struct aviary_session *session, const struct aviary_range *range)
{
	unsigned long first = range->offset / AVIARY_CHUNK;
	unsigned long last = first + range->length / AVIARY_CHUNK - 1;
	struct aviary_chunk *chunk;
	unsigned long index;
	int err;

	mutex_lock(&session->chunk_lock);
	index = first;
	while (chunk_next(session, &index, last, AVIARY_CHUNK_LOCAL, AVIARY_CHUNK_LEAVING))
		;
	index = first;
	while (chunk_next(session, &index, last, AVIARY_CHUNK_READY, AVIARY_CHUNK_LEAVING))
		;
	mutex_unlock(&session->chunk_lock);
	/* No new mapping can appear: faults wait until the chunks have left. */
	unmap_mapping_range(&session->mapping, range->offset, range->length, 1);

	err = chunks_unmap(session, first, last);
	if (err) {
		/* The API server may still map them; only the end of the session settles that. */
		aviary_session_end(session);
		return aviary_session_over(session) && err != -EINTR ? -EPIPE : err;
	}
	mutex_lock(&session->chunk_lock);
	xa_for_each_range(&session->chunks, index, chunk, first, last) {
		if (!xa_is_value(chunk) && chunk->state == AVIARY_CHUNK_LEAVING)
			chunk_free(session, index, chunk);
	}
	mutex_unlock(&session->chunk_lock);
	wake_up_all(&session->chunk_wait);
	return 0;
}

long aviary_chunks_release(struct aviary_session *session, const struct aviary_range *range)
{
	long err;

	if (!range_valid(session, range))
		return -EINVAL;
	if (aviary_session_over(session))
		return -EPIPE;
	if (mutex_lock_killable(&session->release_lock))
		return -EINTR;
	err = chunks_release(session, range);
	mutex_unlock(&session->release_lock);
	return err;
}

/* Called when the session is over and the device uses none of its memory. */
void aviary_chunks_free(struct aviary_session *session)
{
	struct aviary_chunk *chunk;
	unsigned long index;

	mutex_lock(&session->chunk_lock);
	xa_for_each(&session->chunks, index, chunk) {
		/* A thread that makes a chunk finds the session over. */
		if (!xa_is_value(chunk))
			chunk_free(session, index, chunk);
	}
	mutex_unlock(&session->chunk_lock);
	wake_up_all(&session->chunk_wait);
}
