/* Tokens, properties and handles: what is found, what is refused, and what is gone. */
#include "common.h"

#include <string.h>

static const fpga_guid guid = NLB;

static uint32_t count(const fpga_properties *filters, uint32_t filters_count)
{
    uint32_t matches = 99;

    OK(fpgaEnumerate(filters, filters_count, NULL, 0, &matches));
    return matches;
}

static void enumeration(void)
{
    fpga_properties one, other, both[2];
    fpga_token tokens[64], token, clone;
    uint32_t all = count(NULL, 0), matches;
    fpga_guid unknown = {1};

    CHECK(all >= 2);
    OK(fpgaGetProperties(NULL, &one));
    OK(fpgaGetProperties(NULL, &other));
    both[0] = one;
    both[1] = other;
    CHECK(count(&one, 1) == all);
    OK(fpgaPropertiesSetObjectType(one, FPGA_DEVICE));
    CHECK(count(&one, 1) == 1);
    OK(fpgaPropertiesSetObjectType(other, FPGA_ACCELERATOR));
    CHECK(count(&other, 1) == all - 1);
    CHECK(count(both, 2) == all);
    OK(fpgaEnumerate(both, 2, tokens, 64, &matches));
    CHECK(matches == all);
    for (uint32_t i = 0; i < matches; i++)
        OK(fpgaDestroyToken(&tokens[i]));
    CHECK(tokens[0] == NULL);
    OK(fpgaPropertiesSetBus(other, 200));
    CHECK(count(&other, 1) == 0);
    OK(fpgaClearProperties(other));
    OK(fpgaPropertiesSetGUID(other, unknown));
    CHECK(count(&other, 1) == 0);
    /* A property that only the other type has looks for nothing. */
    OK(fpgaPropertiesSetNumSlots(one, 1));
    OK(fpgaPropertiesSetObjectType(one, FPGA_ACCELERATOR));
    CHECK(count(&one, 1) == 0);

    matches = 5;
    EXPECT(fpgaEnumerate(NULL, 1, NULL, 0, &matches), FPGA_INVALID_PARAM);
    EXPECT(fpgaEnumerate(&one, 0, NULL, 0, &matches), FPGA_INVALID_PARAM);
    EXPECT(fpgaEnumerate(NULL, 0, NULL, 1, &matches), FPGA_INVALID_PARAM);
    EXPECT(fpgaEnumerate(NULL, 0, NULL, 0, NULL), FPGA_INVALID_PARAM);
    token = find(guid);
    /* A token is no properties. */
    EXPECT(fpgaEnumerate(&token, 1, NULL, 0, &matches), FPGA_INVALID_PARAM);
    OK(fpgaCloneToken(token, &clone));
    OK(fpgaDestroyToken(&token));
    EXPECT(fpgaDestroyToken(&token), FPGA_INVALID_PARAM);
    OK(fpgaDestroyToken(&clone));
    OK(fpgaDestroyProperties(&one));
    OK(fpgaDestroyProperties(&other));
}

static void properties(void)
{
    fpga_token token = find(guid), card, gone;
    fpga_properties of, clone, empty;
    fpga_objtype type;
    fpga_guid told;
    fpga_accelerator_state state;
    fpga_interface interface;
    uint32_t number;
    uint64_t id, other_id;
    uint16_t device;
    uint8_t byte;
    fpga_version version;
    char host[256];

    OK(fpgaGetProperties(token, &of));
    OK(fpgaPropertiesGetObjectType(of, &type));
    OK(fpgaPropertiesGetGUID(of, &told));
    CHECK(type == FPGA_ACCELERATOR && memcmp(told, guid, sizeof told) == 0);
    OK(fpgaPropertiesGetNumMMIO(of, &number));
    CHECK(number == 1);
    OK(fpgaPropertiesGetNumInterrupts(of, &number));
    CHECK(number == 4);
    OK(fpgaPropertiesGetAcceleratorState(of, &state));
    CHECK(state == FPGA_ACCELERATOR_UNASSIGNED);
    OK(fpgaPropertiesGetInterface(of, &interface));
    CHECK(interface == FPGA_IFC_SIM_DFL);
    OK(fpgaPropertiesGetDeviceID(of, &device));
    CHECK(device == 0xa5e);
    OK(fpgaPropertiesGetNumErrors(of, &number));
    CHECK(number == 0);
    OK(fpgaPropertiesGetObjectID(of, &id));
    OK(fpgaPropertiesGetHostname(of, host, sizeof host));
    /* A property of the other type, none at all, and none of this object. */
    EXPECT(fpgaPropertiesGetNumSlots(of, &number), FPGA_INVALID_PARAM);
    EXPECT(fpgaPropertiesSetBBSID(of, 1), FPGA_INVALID_PARAM);
    EXPECT(fpgaPropertiesGetBus(of, NULL), FPGA_INVALID_PARAM);
    EXPECT(fpgaPropertiesGetBus(token, &byte), FPGA_INVALID_PARAM);
    OK(fpgaPropertiesGetParent(of, &card));
    OK(fpgaGetProperties(NULL, &empty));
    EXPECT(fpgaPropertiesGetBus(empty, &byte), FPGA_NOT_FOUND);
    EXPECT(fpgaPropertiesGetParent(empty, &gone), FPGA_NOT_FOUND);
    EXPECT(fpgaPropertiesSetDevice(empty, 32), FPGA_INVALID_PARAM);
    EXPECT(fpgaPropertiesSetFunction(empty, 8), FPGA_INVALID_PARAM);
    OK(fpgaPropertiesSetDevice(empty, 31));
    OK(fpgaPropertiesGetDevice(empty, &byte));
    CHECK(byte == 31);
    OK(fpgaClearProperties(empty));
    OK(fpgaPropertiesSetParent(empty, card));
    CHECK(count(&empty, 1) == count(NULL, 0) - 1);
    OK(fpgaUpdateProperties(card, empty));
    OK(fpgaPropertiesGetNumSlots(empty, &number));
    CHECK(number == count(NULL, 0) - 1);
    OK(fpgaPropertiesGetBBSVersion(empty, &version));
    OK(fpgaPropertiesGetObjectID(empty, &other_id));
    CHECK(id != other_id);
    EXPECT(fpgaPropertiesGetParent(empty, &gone), FPGA_NOT_FOUND);

    OK(fpgaCloneProperties(of, &clone));
    OK(fpgaDestroyProperties(&of));
    OK(fpgaPropertiesGetGUID(clone, &told));
    CHECK(memcmp(told, guid, sizeof told) == 0);
    of = clone;
    OK(fpgaDestroyProperties(&clone));
    EXPECT(fpgaPropertiesGetGUID(of, &told), FPGA_INVALID_PARAM);
    EXPECT(fpgaDestroyProperties(&of), FPGA_INVALID_PARAM);
    EXPECT(fpgaDestroyProperties(NULL), FPGA_INVALID_PARAM);
    gone = token;
    OK(fpgaDestroyToken(&token));
    EXPECT(fpgaGetProperties(gone, &of), FPGA_INVALID_PARAM);
    EXPECT(fpgaUpdateProperties(gone, empty), FPGA_INVALID_PARAM);
    EXPECT(fpgaPropertiesSetParent(empty, gone), FPGA_INVALID_PARAM);
    OK(fpgaDestroyToken(&card));
    OK(fpgaDestroyProperties(&empty));
}

static void handles(void)
{
    fpga_token token = find(guid), card, gone;
    fpga_handle handle, other, children[1];
    fpga_properties of;
    fpga_accelerator_state state;
    fpga_guid told;
    uint32_t half, children_count = 7;
    uint64_t word, *pointer = &word;

    OK(fpgaOpen(token, &handle, 0));
    EXPECT(fpgaOpen(token, &other, 0), FPGA_BUSY);
    EXPECT(fpgaOpen(token, &other, FPGA_OPEN_SHARED), FPGA_BUSY);
    OK(fpgaGetPropertiesFromHandle(handle, &of));
    OK(fpgaPropertiesGetAcceleratorState(of, &state));
    CHECK(state == FPGA_ACCELERATOR_ASSIGNED);
    OK(fpgaPropertiesGetGUID(of, &told));
    CHECK(memcmp(told, guid, sizeof told) == 0);
    OK(fpgaPropertiesGetParent(of, &card));
    OK(fpgaDestroyProperties(&of));
    EXPECT(fpgaOpen(card, &other, 0), FPGA_NOT_SUPPORTED);
    OK(fpgaDestroyToken(&card));
    OK(fpgaGetChildren(handle, 1, children, &children_count));
    CHECK(children_count == 0);

    OK(fpgaReadMMIO64(handle, 0, 0x08, &word));
    CHECK(word == 0xf89e433683f9040b);
    OK(fpgaReadMMIO64(handle, 0, 0x10, &word));
    CHECK(word == 0xd8424dc4a4a3c413);
    OK(fpgaWriteMMIO64(handle, 0, SCRATCH, 0x1122334455667788));
    OK(fpgaReadMMIO32(handle, 0, SCRATCH, &half));
    CHECK(half == 0x55667788);
    OK(fpgaWriteMMIO32(handle, 0, SCRATCH + 4, 0x99aabbcc));
    OK(fpgaReadMMIO64(handle, 0, SCRATCH, &word));
    CHECK(word == 0x99aabbcc55667788);
    for (uint64_t place = 0xff9; place <= 0x1008; place += 7) {
        EXPECT(fpgaReadMMIO64(handle, 0, place, &word), FPGA_INVALID_PARAM);
        EXPECT(fpgaWriteMMIO32(handle, 0, place, 1), FPGA_INVALID_PARAM);
    }
    EXPECT(fpgaWriteMMIO64(handle, 0, 0x1000, 1), FPGA_INVALID_PARAM);
    EXPECT(fpgaWriteMMIO64(handle, 0, UINT64_MAX - 7, 1), FPGA_INVALID_PARAM);
    EXPECT(fpgaWriteMMIO64(handle, 1, SCRATCH, 1), FPGA_INVALID_PARAM);
    EXPECT(fpgaReadMMIO32(handle, 0, SCRATCH, NULL), FPGA_INVALID_PARAM);
    EXPECT(fpgaUnmapMMIO(handle, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaMapMMIO(handle, 1, NULL), FPGA_INVALID_PARAM);
    EXPECT(fpgaMapMMIO(handle, 0, &pointer), FPGA_NOT_SUPPORTED);
    CHECK(pointer == NULL);
    OK(fpgaMapMMIO(handle, 0, NULL));
    OK(fpgaUnmapMMIO(handle, 0));
    OK(fpgaReset(handle));
    OK(fpgaReadMMIO64(handle, 0, SCRATCH, &word));
    CHECK(word == 0);

    /* A closed handle, one of another kind, and none. */
    gone = handle;
    OK(fpgaClose(handle));
    EXPECT(fpgaClose(gone), FPGA_INVALID_PARAM);
    EXPECT(fpgaReset(gone), FPGA_INVALID_PARAM);
    EXPECT(fpgaReadMMIO64(gone, 0, SCRATCH, &word), FPGA_INVALID_PARAM);
    EXPECT(fpgaReset(token), FPGA_INVALID_PARAM);
    EXPECT(fpgaReset(NULL), FPGA_INVALID_PARAM);
    EXPECT(fpgaGetPropertiesFromHandle(gone, &of), FPGA_INVALID_PARAM);
    EXPECT(fpgaOpen(gone, &handle, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaOpen(token, NULL, 0), FPGA_INVALID_PARAM);
    EXPECT(fpgaOpen(token, &handle, 8), FPGA_INVALID_PARAM);
    OK(fpgaOpen(token, &handle, FPGA_OPEN_SHARED));
    OK(fpgaOpen(token, &other, FPGA_OPEN_SHARED));
    OK(fpgaWriteMMIO64(handle, 0, SCRATCH, 1));
    OK(fpgaReadMMIO64(other, 0, SCRATCH, &word));
    CHECK(word == 0);
    OK(fpgaClose(handle));
    OK(fpgaClose(other));
    OK(fpgaDestroyToken(&token));
}

static void others(void)
{
    fpga_version version;
    char text[FPGA_BUILD_STR_MAX];
    uint64_t word;

    OK(fpgaInitialize(NULL));
    OK(fpgaGetOPAECVersion(&version));
    CHECK(version.major == 2);
    OK(fpgaGetOPAECVersionString(text, FPGA_VERSION_STR_MAX));
    EXPECT(fpgaGetOPAECVersionString(text, 2), FPGA_EXCEPTION);
    EXPECT(fpgaGetOPAECVersionString(NULL, 20), FPGA_INVALID_PARAM);
    OK(fpgaGetOPAECBuildString(text, sizeof text));
    for (int result = FPGA_OK; result <= FPGA_RECONF_ERROR; result++)
        CHECK(strcmp(fpgaErrStr(result), "unknown error") != 0);
    CHECK(strcmp(fpgaErrStr(99), "unknown error") == 0);
    EXPECT(fpgaReconfigureSlot(NULL, 0, NULL, 0, 0), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaGetNumMetrics(NULL, &word), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaReadError(NULL, 0, &word), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaTokenGetObject(NULL, "", NULL, 0), FPGA_NOT_SUPPORTED);
    EXPECT(fpgaPropertiesGetModel(NULL, text), FPGA_NOT_SUPPORTED);
    OK(fpgaFinalize());
}

int main(void)
{
    enumeration();
    properties();
    handles();
    others();
    puts("objects are in order");
    return 0;
}
