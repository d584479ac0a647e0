/* Cards and accelerators, found and named by tokens. */
#include "objects.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

/* A monitor has 16 ports at most. */
#define MAX_PORTS 16
/* The GUID of a card; its accelerators have those of their types. */
static const fpga_guid CARD_GUID = {0x61, 0x76, 0x69, 0x61, 0x72, 0x79, 0x4a, 0x5e, 0x9d, 0x1b, 0x2f, 0x4f, 0x0c, 0x11, 0x00, 0x00};

uint64_t resource_id(const struct resource *resource)
{
    return resource->objtype == FPGA_DEVICE ? 0xa5e0000 : 0xa5e0001 + resource->port;
}

static void nothing_to_do(struct object *object)
{
    (void)object;
}

fpga_token token_new(const struct resource *resource)
{
    struct token *token = object_new(TOKEN, sizeof *token, nothing_to_do);

    if (token) {
        token->resource = *resource;
        object_show(token);
    }
    return token;
}

int find_card(struct resource *card, struct aviary_fpga_port *ports, unsigned room)
{
    unsigned count;
    int error = aviary_fpga_list(ports, room, &count);

    *card = (struct resource){.objtype = FPGA_DEVICE, .ports = count};
    memcpy(card->guid, CARD_GUID, sizeof card->guid);
    return error;
}

static void accelerator_at(const struct aviary_fpga_port *port, struct resource *resource)
{
    *resource = (struct resource){.objtype = FPGA_ACCELERATOR, .port = port->port};
    for (int i = 0; i < 16; i++)
        resource->guid[i] = (uint8_t)(port->guid[i / 8] >> (56 - 8 * (i % 8)));
}

/* Filters that are held for a call. */
struct filters {
    struct properties **list;
    uint32_t count;
};

static void release(struct filters *filters)
{
    while (filters->count)
        object_release(filters->list[--filters->count]);
    free(filters->list);
}

static fpga_result hold(struct filters *filters, const fpga_properties *wanted, uint32_t count)
{
    *filters = (struct filters){calloc(count ? count : 1, sizeof(struct properties *)), 0};
    if (!filters->list)
        return FPGA_NO_MEMORY;
    for (; filters->count < count; filters->count++) {
        struct properties *found = object_hold(wanted[filters->count], PROPERTIES);
        if (!found) {
            release(filters);
            return FPGA_INVALID_PARAM;
        }
        filters->list[filters->count] = found;
    }
    return FPGA_OK;
}

/* One of the filters looks for the resource, or there is none. */
static bool is_wanted(const struct resource *resource, const struct filters *filters)
{
    struct properties properties;
    bool found = filters->count == 0;

    properties_of(&properties, resource);
    for (uint32_t i = 0; i < filters->count && !found; i++) {
        pthread_mutex_lock(&filters->list[i]->lock);
        found = properties_match(filters->list[i], &properties);
        pthread_mutex_unlock(&filters->list[i]->lock);
    }
    return found;
}

EXPORTED fpga_result fpgaEnumerate(const fpga_properties *wanted, uint32_t num_filters, fpga_token *tokens, uint32_t max_tokens,
                                   uint32_t *num_matches)
{
    struct aviary_fpga_port ports[MAX_PORTS];
    struct resource resources[1 + MAX_PORTS];
    struct filters filters;
    uint32_t made = 0;
    fpga_result result;

    if (!num_matches || (max_tokens && !tokens) || (num_filters != 0) != (wanted != NULL))
        return FPGA_INVALID_PARAM;
    *num_matches = 0;
    result = hold(&filters, wanted, num_filters);
    if (result != FPGA_OK)
        return result;
    result = result_of(find_card(&resources[0], ports, MAX_PORTS), "fpgaEnumerate");
    for (uint32_t i = 0; result == FPGA_OK && i <= resources[0].ports && i <= MAX_PORTS; i++) {
        if (i > 0)
            accelerator_at(&ports[i - 1], &resources[i]);
        if (!is_wanted(&resources[i], &filters))
            continue;
        if (made < max_tokens) {
            tokens[made] = token_new(&resources[i]);
            if (!tokens[made]) {
                result = FPGA_NO_MEMORY;
                break;
            }
            made++;
        }
        ++*num_matches;
    }
    while (result != FPGA_OK && made)
        object_end(tokens[--made], TOKEN);
    if (result != FPGA_OK)
        *num_matches = 0;
    release(&filters);
    return result;
}

EXPORTED fpga_result fpgaCloneToken(fpga_token src, fpga_token *dst)
{
    struct token *token = dst ? object_hold(src, TOKEN) : NULL;

    if (!token)
        return FPGA_INVALID_PARAM;
    *dst = token_new(&token->resource);
    object_release(token);
    return *dst ? FPGA_OK : FPGA_NO_MEMORY;
}

EXPORTED fpga_result fpgaDestroyToken(fpga_token *token)
{
    if (!token || !object_end(*token, TOKEN))
        return FPGA_INVALID_PARAM;
    *token = NULL;
    return FPGA_OK;
}

EXPORTED void aviary_opae_connect_by(int (*connect)(void))
{
    aviary_fpga_connect_by(connect);
}
