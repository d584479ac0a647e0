/* Properties of cards and accelerators, and of those that are looked for. */
#define _GNU_SOURCE
#include "objects.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The card is simulated, and has the ids by which programs of OPAE know a simulator, for which they wait without a limit. */
#define VENDOR 0x8086
#define SIMULATOR 0xa5e
/* As PCI Express has them. */
#define MAX_DEVICE 31
#define MAX_FUNCTION 7

#define BIT(property) ((uint32_t)1 << (property))

static bool has_same_id(const struct object *object, const void *context)
{
    const struct handle *handle = (const struct handle *)object;

    return !handle->shared && resource_id(&handle->resource) == resource_id(context);
}

void properties_of(struct properties *properties, const struct resource *resource)
{
    bool accelerator = resource->objtype == FPGA_ACCELERATOR;

    properties->known = BIT(OBJTYPE) | BIT(SEGMENT) | BIT(BUS) | BIT(DEVICE) | BIT(FUNCTION) | BIT(SOCKET_ID) | BIT(DEVICE_ID)
        | BIT(VENDOR_ID) | BIT(SUBSYSTEM_VENDOR_ID) | BIT(SUBSYSTEM_DEVICE_ID) | BIT(GUID) | BIT(OBJECT_ID) | BIT(NUM_ERRORS)
        | BIT(INTERFACE) | BIT(HOSTNAME)
        | (accelerator ? BIT(PARENT) | BIT(NUM_MMIO) | BIT(NUM_INTERRUPTS) | BIT(STATE)
                       : BIT(NUM_SLOTS) | BIT(BBS_ID) | BIT(BBS_VERSION));
    properties->parent = (struct resource){.objtype = FPGA_DEVICE};
    properties->objtype = resource->objtype;
    properties->segment = 0;
    properties->bus = properties->device = properties->function = properties->socket_id = 0;
    properties->device_id = properties->subsystem_device_id = SIMULATOR;
    properties->vendor_id = properties->subsystem_vendor_id = VENDOR;
    properties->num_slots = resource->ports;
    properties->num_mmio = 1;
    properties->num_interrupts = VECTORS;
    properties->num_errors = 0;
    properties->bbs_id = 0;
    properties->object_id = resource_id(resource);
    properties->bbs_version = (fpga_version){1, 0, 0};
    memcpy(properties->guid, resource->guid, sizeof properties->guid);
    properties->state = accelerator && object_any(HANDLE, has_same_id, resource) ? FPGA_ACCELERATOR_ASSIGNED
                                                                                 : FPGA_ACCELERATOR_UNASSIGNED;
    properties->interface = FPGA_IFC_SIM_DFL;
    if (gethostname(properties->hostname, sizeof properties->hostname) != 0)
        properties->hostname[0] = 0;
    properties->hostname[sizeof properties->hostname - 1] = 0;
}

#define SAME(property, field) (!(asked & BIT(property)) || filter->field == properties->field)

bool properties_match(const struct properties *filter, const struct properties *properties)
{
    uint32_t asked = filter->known;

    if (asked & ~properties->known)
        return false;
    return (!(asked & BIT(PARENT)) || resource_id(&filter->parent) == resource_id(&properties->parent)) && SAME(OBJTYPE, objtype)
        && SAME(SEGMENT, segment) && SAME(BUS, bus) && SAME(DEVICE, device) && SAME(FUNCTION, function)
        && SAME(SOCKET_ID, socket_id) && SAME(DEVICE_ID, device_id) && SAME(VENDOR_ID, vendor_id)
        && SAME(SUBSYSTEM_VENDOR_ID, subsystem_vendor_id) && SAME(SUBSYSTEM_DEVICE_ID, subsystem_device_id)
        && SAME(NUM_SLOTS, num_slots) && SAME(BBS_ID, bbs_id) && SAME(BBS_VERSION, bbs_version.major)
        && SAME(BBS_VERSION, bbs_version.minor) && SAME(BBS_VERSION, bbs_version.patch)
        && (!(asked & BIT(GUID)) || memcmp(filter->guid, properties->guid, sizeof filter->guid) == 0) && SAME(NUM_MMIO, num_mmio)
        && SAME(NUM_INTERRUPTS, num_interrupts) && SAME(STATE, state) && SAME(OBJECT_ID, object_id)
        && SAME(NUM_ERRORS, num_errors) && SAME(INTERFACE, interface)
        && (!(asked & BIT(HOSTNAME)) || strcmp(filter->hostname, properties->hostname) == 0);
}

static void forget(struct object *object)
{
    pthread_mutex_destroy(&((struct properties *)object)->lock);
}

static fpga_result make(const struct resource *resource, fpga_properties *prop)
{
    struct properties *properties = object_new(PROPERTIES, sizeof *properties, forget);

    if (!properties)
        return FPGA_NO_MEMORY;
    pthread_mutex_init(&properties->lock, NULL);
    if (resource)
        properties_of(properties, resource);
    object_show(properties);
    *prop = properties;
    return FPGA_OK;
}

/* The card's number of ports may have changed since its token was made. */
static fpga_result look_again(struct resource *resource)
{
    return resource->objtype == FPGA_DEVICE ? result_of(find_card(resource, NULL, 0), "fpgaGetProperties") : FPGA_OK;
}

EXPORTED fpga_result fpgaGetProperties(fpga_token token, fpga_properties *prop)
{
    struct token *held;
    struct resource resource;
    fpga_result result;

    if (!prop)
        return FPGA_INVALID_PARAM;
    if (!token)
        return make(NULL, prop);
    held = object_hold(token, TOKEN);
    if (!held)
        return FPGA_INVALID_PARAM;
    resource = held->resource;
    object_release(held);
    result = look_again(&resource);
    return result == FPGA_OK ? make(&resource, prop) : result;
}

EXPORTED fpga_result fpgaGetPropertiesFromHandle(fpga_handle handle, fpga_properties *prop)
{
    struct handle *held = prop ? object_hold(handle, HANDLE) : NULL;
    fpga_result result;

    if (!held)
        return FPGA_INVALID_PARAM;
    result = make(&held->resource, prop);
    object_release(held);
    return result;
}

/* The object behind a program's pointer, held and locked. */
static struct properties *enter(const fpga_properties prop)
{
    struct properties *properties = object_hold(prop, PROPERTIES);

    if (properties)
        pthread_mutex_lock(&properties->lock);
    return properties;
}

static fpga_result leave(struct properties *properties, fpga_result result)
{
    pthread_mutex_unlock(&properties->lock);
    object_release(properties);
    return result;
}

EXPORTED fpga_result fpgaUpdateProperties(fpga_token token, fpga_properties prop)
{
    struct token *held = object_hold(token, TOKEN);
    struct properties *properties;
    struct resource resource;
    fpga_result result;

    if (!held)
        return FPGA_INVALID_PARAM;
    resource = held->resource;
    object_release(held);
    result = look_again(&resource);
    if (result != FPGA_OK)
        return result;
    properties = enter(prop);
    if (!properties)
        return FPGA_INVALID_PARAM;
    properties_of(properties, &resource);
    return leave(properties, FPGA_OK);
}

EXPORTED fpga_result fpgaClearProperties(fpga_properties prop)
{
    struct properties *properties = enter(prop);

    if (!properties)
        return FPGA_INVALID_PARAM;
    properties->known = 0;
    return leave(properties, FPGA_OK);
}

EXPORTED fpga_result fpgaCloneProperties(fpga_properties src, fpga_properties *dst)
{
    struct properties *from = dst ? enter(src) : NULL, *to;

    if (!from)
        return FPGA_INVALID_PARAM;
    to = object_new(PROPERTIES, sizeof *to, forget);
    if (!to)
        return leave(from, FPGA_NO_MEMORY);
    struct object object = to->object;
    *to = *from;
    to->object = object;
    pthread_mutex_init(&to->lock, NULL);
    object_show(to);
    *dst = to;
    return leave(from, FPGA_OK);
}

EXPORTED fpga_result fpgaDestroyProperties(fpga_properties *prop)
{
    if (!prop || !object_end(*prop, PROPERTIES))
        return FPGA_INVALID_PARAM;
    *prop = NULL;
    return FPGA_OK;
}

/* The type of object that has a property; ANY: both. */
enum { ANY = -1 };

static bool fits(const struct properties *properties, int objtype)
{
    return objtype == ANY || (properties->known & BIT(OBJTYPE) && (int)properties->objtype == objtype);
}

/* Reads and writes a field. A property that objects of this type do not have is an error, one that is not known is not found. */
#define READ(name, type, property, field, objtype)                                                                             \
    EXPORTED fpga_result fpgaPropertiesGet##name(const fpga_properties prop, type *value)                                      \
    {                                                                                                                          \
        struct properties *properties = value ? enter(prop) : NULL;                                                            \
        if (!properties)                                                                                                       \
            return FPGA_INVALID_PARAM;                                                                                         \
        if (!fits(properties, objtype))                                                                                        \
            return leave(properties, FPGA_INVALID_PARAM);                                                                      \
        if (!(properties->known & BIT(property)))                                                                              \
            return leave(properties, FPGA_NOT_FOUND);                                                                          \
        memcpy(value, &properties->field, sizeof properties->field);                                                           \
        return leave(properties, FPGA_OK);                                                                                     \
    }
#define WRITE(name, type, property, field, objtype, allowed)                                                                   \
    EXPORTED fpga_result fpgaPropertiesSet##name(fpga_properties prop, type value)                                             \
    {                                                                                                                          \
        struct properties *properties = (allowed) ? enter(prop) : NULL;                                                        \
        if (!properties)                                                                                                       \
            return FPGA_INVALID_PARAM;                                                                                         \
        if (!fits(properties, objtype))                                                                                        \
            return leave(properties, FPGA_INVALID_PARAM);                                                                      \
        properties->field = value;                                                                                             \
        properties->known |= BIT(property);                                                                                    \
        return leave(properties, FPGA_OK);                                                                                     \
    }
#define BOTH(name, type, property, field, objtype, allowed)                                                                    \
    READ(name, type, property, field, objtype)                                                                                 \
    WRITE(name, type, property, field, objtype, allowed)

BOTH(ObjectType, fpga_objtype, OBJTYPE, objtype, ANY, value == FPGA_DEVICE || value == FPGA_ACCELERATOR)
BOTH(Segment, uint16_t, SEGMENT, segment, ANY, true)
BOTH(Bus, uint8_t, BUS, bus, ANY, true)
BOTH(Device, uint8_t, DEVICE, device, ANY, value <= MAX_DEVICE)
BOTH(Function, uint8_t, FUNCTION, function, ANY, value <= MAX_FUNCTION)
BOTH(SocketID, uint8_t, SOCKET_ID, socket_id, ANY, true)
BOTH(DeviceID, uint16_t, DEVICE_ID, device_id, ANY, true)
BOTH(VendorID, uint16_t, VENDOR_ID, vendor_id, ANY, true)
BOTH(SubsystemVendorID, uint16_t, SUBSYSTEM_VENDOR_ID, subsystem_vendor_id, ANY, true)
BOTH(SubsystemDeviceID, uint16_t, SUBSYSTEM_DEVICE_ID, subsystem_device_id, ANY, true)
BOTH(NumSlots, uint32_t, NUM_SLOTS, num_slots, FPGA_DEVICE, true)
BOTH(BBSID, uint64_t, BBS_ID, bbs_id, FPGA_DEVICE, true)
BOTH(BBSVersion, fpga_version, BBS_VERSION, bbs_version, FPGA_DEVICE, true)
BOTH(NumMMIO, uint32_t, NUM_MMIO, num_mmio, FPGA_ACCELERATOR, true)
BOTH(NumInterrupts, uint32_t, NUM_INTERRUPTS, num_interrupts, FPGA_ACCELERATOR, true)
BOTH(AcceleratorState, fpga_accelerator_state, STATE, state, FPGA_ACCELERATOR, true)
BOTH(ObjectID, uint64_t, OBJECT_ID, object_id, ANY, true)
BOTH(NumErrors, uint32_t, NUM_ERRORS, num_errors, ANY, true)
BOTH(Interface, fpga_interface, INTERFACE, interface, ANY, true)
READ(GUID, fpga_guid, GUID, guid, ANY)

EXPORTED fpga_result fpgaPropertiesSetGUID(fpga_properties prop, fpga_guid guid)
{
    struct properties *properties = guid ? enter(prop) : NULL;

    if (!properties)
        return FPGA_INVALID_PARAM;
    memcpy(properties->guid, guid, sizeof properties->guid);
    properties->known |= BIT(GUID);
    return leave(properties, FPGA_OK);
}

EXPORTED fpga_result fpgaPropertiesGetParent(const fpga_properties prop, fpga_token *parent)
{
    struct properties *properties = parent ? enter(prop) : NULL;
    struct resource card;
    fpga_result result;

    if (!properties)
        return FPGA_INVALID_PARAM;
    result = leave(properties, properties->known & BIT(PARENT) ? FPGA_OK : FPGA_NOT_FOUND);
    if (result == FPGA_OK)
        result = result_of(find_card(&card, NULL, 0), "fpgaPropertiesGetParent");
    if (result != FPGA_OK)
        return result;
    *parent = token_new(&card);
    return *parent ? FPGA_OK : FPGA_NO_MEMORY;
}

EXPORTED fpga_result fpgaPropertiesSetParent(fpga_properties prop, fpga_token parent)
{
    struct token *token = object_hold(parent, TOKEN);
    struct properties *properties = token ? enter(prop) : NULL;

    if (properties) {
        properties->parent = token->resource;
        properties->known |= BIT(PARENT);
        leave(properties, FPGA_OK);
    }
    if (token)
        object_release(token);
    return properties ? FPGA_OK : FPGA_INVALID_PARAM;
}

EXPORTED fpga_result fpgaPropertiesGetHostname(const fpga_properties prop, char *name, size_t len)
{
    struct properties *properties = name && len ? enter(prop) : NULL;

    if (!properties)
        return FPGA_INVALID_PARAM;
    if (!(properties->known & BIT(HOSTNAME)))
        return leave(properties, FPGA_NOT_FOUND);
    strncpy(name, properties->hostname, len - 1);
    name[len - 1] = 0;
    return leave(properties, FPGA_OK);
}

EXPORTED fpga_result fpgaPropertiesSetHostname(fpga_properties prop, const char *name, size_t len)
{
    struct properties *properties = name ? enter(prop) : NULL;

    if (!properties)
        return FPGA_INVALID_PARAM;
    len = strnlen(name, len < sizeof properties->hostname ? len : sizeof properties->hostname - 1);
    memcpy(properties->hostname, name, len);
    properties->hostname[len] = 0;
    properties->known |= BIT(HOSTNAME);
    return leave(properties, FPGA_OK);
}
