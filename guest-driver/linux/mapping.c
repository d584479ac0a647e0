// SPDX-License-Identifier: GPL-2.0
/* The arena in the address space of its process. */

#include "compat.h"
#include "driver.h"

/* The arena of an ended session: ordinary memory, so that no process gets a signal. */
static vm_fault_t fault_private(struct vm_fault *vmf)
{
	struct page *page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	vm_fault_t result;

	if (!page)
		return VM_FAULT_OOM;
	result = vmf_insert_page(vmf->vma, vmf->address, page);
	put_page(page);
	return result;
}

/* Inserts the pages of the chunk that lie in this mapping. Called with chunk_lock. */
static int chunk_insert(struct vm_fault *vmf, unsigned long index, struct aviary_chunk *chunk)
{
	struct vm_area_struct *vma = vmf->vma;
	pgoff_t start = index * AVIARY_CHUNK_PAGES;
	pgoff_t first = max(start, vma->vm_pgoff);
	pgoff_t end = min(start + AVIARY_CHUNK_PAGES, vma->vm_pgoff + vma_pages(vma));
	unsigned long address = vma->vm_start + ((first - vma->vm_pgoff) << PAGE_SHIFT);
	unsigned long left = end - first;
	int err;

	err = vm_insert_pages(vma, address, chunk->pages + (first - start), &left);
	if (err != -EBUSY)
		return err;
	/* Another thread inserted pages first, or madvise() has removed some of them. */
	for (; first < end; first++, address += PAGE_SIZE) {
		err = vm_insert_page(vma, address, chunk->pages[first - start]);
		if (err && err != -EBUSY)
			return err;
	}
	return 0;
}

/* True if the chunk can be mapped; it is mapped then. */
static bool fault_chunk(struct vm_fault *vmf, struct aviary_session *session, unsigned long index,
			vm_fault_t *result)
{
	enum aviary_chunk_state state;
	bool usable;
	int err;

	mutex_lock(&session->chunk_lock);
	state = aviary_chunk_state(session, index);
	usable = !aviary_session_over(session) &&
		 (state == AVIARY_CHUNK_READY || state == AVIARY_CHUNK_LOCAL);
	if (usable) {
		err = chunk_insert(vmf, index, xa_load(&session->chunks, index));
		*result = err ? vmf_error(err) : VM_FAULT_NOPAGE;
	}
	mutex_unlock(&session->chunk_lock);
	return usable;
}

static bool chunk_busy(struct aviary_session *session, unsigned long index)
{
	enum aviary_chunk_state state;

	if (aviary_session_over(session))
		return false;
	state = aviary_chunk_state(session, index);
	return state == AVIARY_CHUNK_MAKING || state == AVIARY_CHUNK_PENDING ||
	       state == AVIARY_CHUNK_LEAVING;
}

static vm_fault_t aviary_fault(struct vm_fault *vmf)
{
	struct aviary_session *session = vmf->vma->vm_private_data;
	unsigned long index = vmf->pgoff / AVIARY_CHUNK_PAGES;
	vm_fault_t result = VM_FAULT_NOPAGE;
	int err;

	while (!aviary_session_over(session)) {
		if (fault_chunk(vmf, session, index, &result))
			return result;
		err = 0;
		if (aviary_chunk_state(session, index) == AVIARY_CHUNK_ABSENT)
			err = aviary_chunk_make(session, index);
		if (!err)
			err = wait_event_killable(session->chunk_wait,
						  !chunk_busy(session, index));
		if (err == -ENOMEM)
			return VM_FAULT_OOM;
		/* The process is being killed; its fatal signal is delivered before this one. */
		if (err)
			return VM_FAULT_SIGBUS;
	}
	return fault_private(vmf);
}

static const struct vm_operations_struct aviary_vm_operations = {
	.fault = aviary_fault,
};

int aviary_mapping(struct file *file, struct vm_area_struct *vma)
{
	struct aviary_session *session = file->private_data;
	u64 length = vma->vm_end - vma->vm_start;

	if (!aviary_session_owned(session))
		return -EPERM;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff || !IS_ALIGNED(length, AVIARY_CHUNK) ||
	    length > aviary_session_largest(session))
		return -EINVAL;
	if (aviary_session_over(session))
		return -EPIPE;
	if (test_and_set_bit(0, &session->mapped))
		return -EBUSY;
	session->arena = length;
	/* VM_MIXEDMAP, because faults insert single pages. */
	aviary_set_vm_flags(vma, VM_MIXEDMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP,
			    VM_MAYEXEC);
	vma->vm_private_data = session;
	vma->vm_ops = &aviary_vm_operations;
	return 0;
}
