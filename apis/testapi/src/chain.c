/* Chains of structs that say what they are. */
#include <ctype.h>

#include "testapi.h"

ta_status ta_plan_make(ta_plan *plan) {
    uint32_t digits = 0;
    if (!plan)
        return TA_INVALID_VALUE;
    plan->number = plan->links = 0;
    for (ta_link_digit *link = plan->next; link; link = link->next) {
        plan->links++;
        if (link->kind == TA_LINK_DIGIT) {
            plan->number = plan->number * 10 + link->digit;
            link->place = ++digits;
        } else if (link->kind == TA_LINK_LABEL) {
            char *text = ((ta_link_label *)(void *)link)->text;
            for (size_t i = 0; i < sizeof((ta_link_label *)0)->text; i++)
                text[i] = (char)toupper((unsigned char)text[i]);
        }
    }
    return TA_OK;
}
int32_t ta_plan_links(const ta_plan *plan) {
    int32_t links = 0;
    if (!plan)
        return TA_INVALID_VALUE;
    for (const ta_link_digit *link = plan->next; link; link = link->next)
        links++;
    return links;
}
