// SPDX-License-Identifier: GPL-2.0
/* Tells the device where pages of guest memory lie in an arena. */

#include <linux/io.h>

#include "driver.h"

/* Number of pages, adjacent in the arena, that are physically contiguous. */
static unsigned long extent_pages(struct page **pages, unsigned long count)
{
	unsigned long first = page_to_pfn(pages[0]), length = 1;

	while (length < count && page_to_pfn(pages[length]) == first + length)
		length++;
	return length;
}

/**
 * aviary_map_request - makes a MAP of as many pages as one request takes
 * @session: the session of the arena
 * @offset: offset of the first page in the arena
 * @pages: the pages
 * @count: number of pages, not 0
 * @flags: AVIARY_MAP_*
 * @taken: number of pages in the request
 *
 * Return: the request, or NULL if memory is short.
 */
struct aviary_request *aviary_map_request(struct aviary_session *session, u64 offset,
					  struct page **pages, unsigned long count, u32 flags,
					  unsigned long *taken)
{
	struct aviary_request *request;
	struct aviary_extent *extent;
	unsigned long named, length, extents;

	named = 0;
	for (extents = 0; extents < session->device->most_extents && named < count; extents++)
		named += extent_pages(pages + named, count - named);

	request = aviary_request_new(session, AVIARY_MAP, extents * sizeof(*extent));
	if (!request)
		return NULL;
	request->header.flags = cpu_to_le32(flags);
	request->header.count = cpu_to_le32(extents);
	request->header.offset = cpu_to_le64(offset);
	request->header.length = cpu_to_le64((u64)named * PAGE_SIZE);
	*taken = named;
	extent = (struct aviary_extent *)request->payload;
	for (; extents; extents--, extent++, pages += length) {
		length = extent_pages(pages, named);
		named -= length;
		extent->address = cpu_to_le64(page_to_phys(pages[0]));
		extent->length = cpu_to_le64((u64)length * PAGE_SIZE);
	}
	return request;
}

/* Unmaps a range; returns when the API server no longer maps it. */
int aviary_unmap(struct aviary_session *session, u64 offset, u64 length)
{
	struct aviary_request *request = aviary_request_new(session, AVIARY_UNMAP, 0);

	if (!request)
		return -ENOMEM;
	request->header.offset = cpu_to_le64(offset);
	request->header.length = cpu_to_le64(length);
	return aviary_request_call(session, request);
}
