/* An accelerator of a virtual machine: a PCI function that is bound to the kernel's vfio-pci. crates/fpga/src/device has the other
 * end. What a program asks by link.c in other places goes to registers and to the kernel's VFIO here. */
#define _GNU_SOURCE
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/vfio.h>

/* Where the kernel shows functions that are bound to vfio-pci, and where VFIO's files are. */
#define BOUND "/sys/bus/pci/drivers/vfio-pci"
/* All functions, and the class of ours, a processing accelerator. */
#define FUNCTIONS "/sys/bus/pci/devices"
#define ACCELERATOR "0x120000"
#define VFIO "/dev/vfio"
#define PAGE ((size_t)4096)
#define VECTORS 4

/* Registers of the second page (crates/fpga/src/device/control_page.rs). */
enum { MAGIC = 0x00, CONTROL_VERSION = 0x08, GUID = 0x10, STATE_BYTES = 0x20, SLICE_BYTES = 0x28, SET_BASE = 0x30, STATE_ADDRESS = 0x38,
       SET_RESET = 0x40, ERROR = 0x48, STATUS = 0x50, FAULT_CAUSE = 0x88, REFUSED_MAPS = 0xa8, LOST_UNMAPS = 0xe8 };
/* Registers from STATUS on, in the order of INFO's words; a bit for each that counts for as long as the device lives. */
enum { INFO_WORDS = 7, COUNTS = 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 };
/* "AVIARYFP". */
static const uint64_t MAGIC_VALUE = 0x5046595241495641;
static const uint64_t CONTROL_VERSION_VALUE = 1;
/* Values of RESET: of the job; of everything. */
enum { RESET_JOB = 1, RESET_ALL = 2 };
/* A STATUS from here on is none of a card that lives; all ones: the device's process has ended. */
static const uint64_t LOST = 5;

struct fpga_function {
    int container, group, device;
    /* The accelerator's page, and the one with the registers above. */
    volatile char *page, *control;
    int has_vectors;
    /* It counts as one that this process has. */
    int is_held;
    /* Maps that the card has refused, and unmaps that took more, as far as it is known here. */
    uint64_t refused, lost;
    /* What programs before this one have left in the counts of INFO. */
    uint64_t before[INFO_WORDS];
};

/* Functions that this process has. */
static atomic_int held;

static uint64_t load(volatile char *page, size_t offset)
{
    return *(volatile uint64_t *)(page + offset);
}

static void store(volatile char *page, size_t offset, uint64_t value)
{
    *(volatile uint64_t *)(page + offset) = value;
}

void fpga_function_close(struct fpga_function *function)
{
    atomic_fetch_sub(&held, function->is_held);
    if (function->control)
        munmap((void *)function->control, PAGE);
    if (function->page)
        munmap((void *)function->page, PAGE);
    /* The kernel unmaps what is left and resets the function. */
    if (function->device >= 0)
        close(function->device);
    if (function->group >= 0)
        close(function->group);
    if (function->container >= 0)
        close(function->container);
    free(function);
}

/* Opens the IOMMU group of a function and gives it page tables of its own. A negative error. */
static int open_group(struct fpga_function *function, const char *address)
{
    struct vfio_group_status status = {.argsz = sizeof status};
    char path[sizeof BOUND + NAME_MAX + 32], group[PATH_MAX], file[sizeof VFIO + NAME_MAX + 2];
    ssize_t length;

    snprintf(path, sizeof path, "%s/%s/iommu_group", BOUND, address);
    length = readlink(path, group, sizeof group - 1);
    if (length < 0)
        return -ENOTSUP;
    group[length] = 0;
    snprintf(file, sizeof file, "%s/%.*s", VFIO, NAME_MAX, strrchr(group, '/') ? strrchr(group, '/') + 1 : group);
    function->group = open(file, O_RDWR | O_CLOEXEC);
    if (function->group < 0)
        return errno == EBUSY ? -EADDRINUSE : -errno;
    function->container = open(VFIO "/vfio", O_RDWR | O_CLOEXEC);
    if (function->container < 0)
        return -errno;
    if (ioctl(function->group, VFIO_GROUP_GET_STATUS, &status) != 0 || !(status.flags & VFIO_GROUP_FLAGS_VIABLE))
        return -ENOTSUP;
    if (ioctl(function->group, VFIO_GROUP_SET_CONTAINER, &function->container) != 0)
        return errno == EBUSY ? -EADDRINUSE : -errno;
    /* EPERM: interrupts are not isolated. ENODEV: no module of the kernel offers this kind of page tables. */
    if (ioctl(function->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0)
        return errno == EPERM ? -ENOTSUP : errno == ENODEV ? -ENOPKG : -errno;
    function->device = ioctl(function->group, VFIO_GROUP_GET_DEVICE_FD, address);
    return function->device < 0 ? -errno : 0;
}

static volatile char *map_page(int device, uint32_t index)
{
    struct vfio_region_info region = {.argsz = sizeof region, .index = index};
    void *page;

    if (ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &region) != 0 || region.size != PAGE || !(region.flags & VFIO_REGION_INFO_FLAG_MMAP))
        return NULL;
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)region.offset);
    return page == MAP_FAILED ? NULL : page;
}

/* Without this bit there are no interrupts. */
static int allow_bus_master(int device)
{
    struct vfio_region_info region = {.argsz = sizeof region, .index = VFIO_PCI_CONFIG_REGION_INDEX};
    uint16_t command;

    if (ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &region) != 0 || pread(device, &command, 2, (off_t)region.offset + 4) != 2)
        return -EIO;
    command |= 6;
    return pwrite(device, &command, 2, (off_t)region.offset + 4) == 2 ? 0 : -EIO;
}

/* Opens the function at an address, as "0000:00:04.0". -ENOENT: it is no accelerator of ours. */
static int open_function(const char *address, struct fpga_function **opened)
{
    struct fpga_function *function = calloc(1, sizeof *function);
    int error;

    if (!function)
        return -ENOMEM;
    function->container = function->group = function->device = -1;
    error = open_group(function, address);
    if (!error)
        error = allow_bus_master(function->device);
    if (!error) {
        function->page = map_page(function->device, VFIO_PCI_BAR0_REGION_INDEX);
        function->control = map_page(function->device, VFIO_PCI_BAR2_REGION_INDEX);
        error = function->page && function->control ? 0 : -ENOENT;
    }
    if (!error && load(function->control, MAGIC) != MAGIC_VALUE)
        error = -ENOENT;
    if (!error && load(function->control, CONTROL_VERSION) != CONTROL_VERSION_VALUE)
        error = -EPROTONOSUPPORT;
    if (error)
        fpga_function_close(function);
    else
        *opened = function;
    return error;
}

/* Why no function is bound. -ENOTSUP: there is one that could be ours, and the kernel has no IOMMU for it. */
static int why_unbound(void)
{
    DIR *all = opendir(FUNCTIONS);
    struct dirent *entry;
    int why = -EDESTADDRREQ;

    while (all && why == -EDESTADDRREQ && (entry = readdir(all))) {
        char path[sizeof FUNCTIONS + NAME_MAX + 16], class[sizeof ACCELERATOR] = "";
        FILE *file;

        snprintf(path, sizeof path, FUNCTIONS "/%s/class", entry->d_name);
        file = fopen(path, "re");
        if (file && fgets(class, sizeof class, file) && strcmp(class, ACCELERATOR) == 0) {
            snprintf(path, sizeof path, FUNCTIONS "/%s/iommu_group", entry->d_name);
            if (access(path, F_OK) != 0)
                why = -ENOTSUP;
        }
        if (file)
            fclose(file);
    }
    if (all)
        closedir(all);
    return why;
}

/* Calls `visit` with each accelerator until it returns nonzero, which it then keeps open. Returns what it returned; 0: there was
 * none or only others, and `*why` is the first reason why one could not be opened, or 0. -EDESTADDRREQ, -ENOTSUP: none is bound. */
static int visit_functions(int (*visit)(struct fpga_function *function, void *argument), void *argument, int *why)
{
    DIR *bound = opendir(BOUND);
    struct dirent *entry;
    int result = 0, count = 0;

    *why = 0;
    while (bound && !result && (entry = readdir(bound))) {
        struct fpga_function *function;
        int error;

        if (strlen(entry->d_name) != sizeof "0000:00:04.0" - 1 || entry->d_name[4] != ':')
            continue;
        count++;
        error = open_function(entry->d_name, &function);
        if (error) {
            if (error != -ENOENT && !*why)
                *why = error;
            continue;
        }
        result = visit(function, argument);
        if (!result)
            fpga_function_close(function);
    }
    if (bound)
        closedir(bound);
    return count ? result : why_unbound();
}

static int registers_of(struct fpga_function *function, size_t first, unsigned count, struct reply *reply)
{
    for (unsigned i = 0; i < count; i++)
        reply->words[i] = load(function->control, first + 8 * i);
    return first == STATUS && reply->words[0] >= LOST ? -ENODEV : 0;
}

static int info(struct fpga_function *function, struct reply *reply)
{
    int error = registers_of(function, STATUS, INFO_WORDS, reply);

    /* A card that has not answered in time is shown with zeros. */
    for (unsigned i = 0; i < INFO_WORDS; i++)
        reply->words[i] -= function->before[i] < reply->words[i] ? function->before[i] : reply->words[i];
    return error;
}

struct wanted {
    const uint64_t *guid;
    struct fpga_function *found;
};

static int take_if_wanted(struct fpga_function *function, void *argument)
{
    struct wanted *wanted = argument;

    if (load(function->control, GUID) != wanted->guid[0] || load(function->control, GUID + 8) != wanted->guid[1])
        return 0;
    wanted->found = function;
    return 1;
}

int fpga_function_open(const uint64_t guid[2], struct fpga_function **function, struct reply *reply)
{
    struct wanted wanted = {guid, NULL};
    int why, result = visit_functions(take_if_wanted, &wanted, &why);

    if (result < 0)
        return result;
    if (!result)
        return why ? why : -ENOENT;
    *function = wanted.found;
    wanted.found->is_held = 1;
    atomic_fetch_add(&held, 1);
    /* Whatever an earlier program has left. */
    store(wanted.found->control, SET_RESET, RESET_ALL);
    for (unsigned i = 0; i < INFO_WORDS; i++)
        if (COUNTS >> i & 1)
            wanted.found->before[i] = load(wanted.found->control, STATUS + 8 * i);
    *reply = (struct reply){.words = {VERSION, load(wanted.found->control, STATE_BYTES), load(wanted.found->control, SLICE_BYTES)}};
    return 0;
}

struct listing {
    struct aviary_fpga_port *ports;
    unsigned room, count;
};

static int note_port(struct fpga_function *function, void *argument)
{
    struct listing *listing = argument;

    if (listing->count < listing->room)
        listing->ports[listing->count] = (struct aviary_fpga_port){
            {load(function->control, GUID), load(function->control, GUID + 8)}, listing->count, 0};
    listing->count++;
    return 0;
}

int fpga_function_list(struct aviary_fpga_port *ports, unsigned room, unsigned *count)
{
    struct listing listing = {ports, room, 0};
    int why, result = visit_functions(note_port, &listing, &why);

    *count = listing.count;
    if (result)
        return result;
    /* One that this program has is there all the same, but cannot be asked again. */
    return listing.count || (why == -EADDRINUSE && atomic_load(&held)) ? 0 : why;
}

/* Has the kernel raise `event` at a vector; at the first call all vectors are made. */
static int raise_at(struct fpga_function *function, unsigned vector, int event)
{
    struct {
        struct vfio_irq_set set;
        int32_t events[VECTORS];
    } wish = {{0}, {-1, -1, -1, -1}};
    unsigned count = function->has_vectors ? 1 : VECTORS;

    wish.set = (struct vfio_irq_set){
        .argsz = (uint32_t)(sizeof wish.set + count * sizeof *wish.events),
        .flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
        .index = VFIO_PCI_MSIX_IRQ_INDEX,
        .start = function->has_vectors ? vector : 0,
        .count = count,
    };
    wish.events[function->has_vectors ? 0 : vector] = event;
    if (ioctl(function->device, VFIO_DEVICE_SET_IRQS, &wish) != 0)
        return -errno;
    function->has_vectors = 1;
    return 0;
}

int fpga_function_event(struct fpga_function *function, unsigned vector, int *descriptor)
{
    int event, error;

    if (vector >= VECTORS)
        return -EINVAL;
    event = eventfd(0, EFD_CLOEXEC);
    if (event < 0)
        return -errno;
    error = raise_at(function, vector, event);
    if (error) {
        close(event);
        return error;
    }
    *descriptor = event;
    return 0;
}

/* The errno of the last write that the card has answered. */
static int answered(struct fpga_function *function)
{
    uint64_t error = load(function->control, ERROR);

    return error < 4096 ? -(int)error : -ENODEV;
}

/* An access of the accelerator's page. Those of wrong places the device counts, and reads as 0; here a wrong one is not made. */
static int access_page(struct fpga_function *function, const struct request *request, struct reply *reply)
{
    uint64_t offset = request->words[0], bytes = request->small;

    if ((bytes != 4 && bytes != 8) || offset % bytes || offset > PAGE - bytes)
        return 0;
    if (request->kind == READ && bytes == 8)
        reply->words[0] = load(function->page, offset);
    else if (request->kind == READ)
        reply->words[0] = *(volatile uint32_t *)(function->page + offset);
    else if (bytes == 8)
        store(function->page, offset, request->words[1]);
    else
        *(volatile uint32_t *)(function->page + offset) = (uint32_t)request->words[1];
    return 0;
}

volatile void *fpga_function_page(struct fpga_function *function)
{
    return function->page;
}

int fpga_function_phase(struct fpga_function *function, uint64_t *phase)
{
    *phase = load(function->control, STATUS);
    return *phase >= LOST ? -ENODEV : 0;
}

int fpga_function_ask(struct fpga_function *function, const struct request *request, struct reply *reply)
{
    *reply = (struct reply){0};
    switch (request->kind) {
    case READ:
    case WRITE: return access_page(function, request, reply);
    case BASE: store(function->control, SET_BASE, request->words[0]); return answered(function);
    case STATE: store(function->control, STATE_ADDRESS, request->words[0]); return answered(function);
    case RESET: store(function->control, SET_RESET, RESET_JOB); return answered(function);
    case INFO: return info(function, reply);
    case FAULT: return registers_of(function, FAULT_CAUSE, 4, reply);
    case UNMAP: return fpga_function_unmap(function, request->words[0], request->words[1]);
    default: return -ENOSYS;
    }
}

/* The VMM cannot tell the guest's kernel that the card has refused a mapping: the register counts those. */
int fpga_function_map(struct fpga_function *function, const void *memory, uint64_t io_address, size_t bytes, int writable)
{
    struct vfio_iommu_type1_dma_map map = {
        .argsz = sizeof map,
        .flags = VFIO_DMA_MAP_FLAG_READ | (writable ? VFIO_DMA_MAP_FLAG_WRITE : 0),
        .vaddr = (uintptr_t)memory,
        .iova = io_address,
        .size = bytes,
    };
    uint64_t refused;

    /* ENOMEM of the kernel is that of RLIMIT_MEMLOCK. */
    if (ioctl(function->container, VFIO_IOMMU_MAP_DMA, &map) != 0)
        return errno == ENOMEM ? -ENOLCK : -errno;
    refused = load(function->control, REFUSED_MAPS);
    if (refused == function->refused)
        return 0;
    function->refused = refused;
    fpga_function_unmap(function, io_address, bytes);
    return refused == UINT64_MAX ? -ENODEV : -ENOMEM;
}

int fpga_function_unmap(struct fpga_function *function, uint64_t io_address, size_t bytes)
{
    struct vfio_iommu_type1_dma_unmap unmap = {.argsz = sizeof unmap, .iova = io_address, .size = bytes};

    uint64_t lost;

    if (ioctl(function->container, VFIO_IOMMU_UNMAP_DMA, &unmap) != 0)
        return -errno;
    lost = load(function->control, LOST_UNMAPS);
    if (lost == function->lost || lost == UINT64_MAX)
        return 0;
    function->lost = lost;
    return -E2BIG;
}
