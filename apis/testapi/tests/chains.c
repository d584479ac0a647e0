/* Chains of structs that say what they are.
 * chains           what is equal natively and remotely
 * chains remoted   links that nothing describes, and chains that have no end */
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "testapi.h"

static void equal(void) {
    ta_link_digit three = {TA_LINK_DIGIT, NULL, 3, 0};
    ta_link_label label = {TA_LINK_LABEL, &three, "label"};
    ta_link_digit two = {TA_LINK_DIGIT, &label, 2, 0}, one = {TA_LINK_DIGIT, &two, 1, 77};
    ta_plan plan = {&one, 99, 99};
    CHECK_EQ(ta_plan_make(&plan), TA_OK);
    CHECK_EQ(plan.number, 123);
    CHECK_EQ(plan.links, 4);
    CHECK(plan.next == &one && one.next == &two && two.next == &label && label.next == &three && three.next == NULL);
    CHECK(one.place == 1 && two.place == 2 && three.place == 3);
    CHECK(one.digit == 1 && one.kind == TA_LINK_DIGIT && label.kind == TA_LINK_LABEL);
    CHECK_EQ(strcmp(label.text, "LABEL"), 0);
    CHECK_EQ(ta_plan_links(&plan), 4);
    plan.next = NULL;
    CHECK_EQ(ta_plan_make(&plan), TA_OK);
    CHECK_EQ(plan.links, 0);
    CHECK_EQ(ta_plan_links(&plan), 0);
    CHECK_EQ(ta_plan_make(NULL), TA_INVALID_VALUE);
    CHECK_EQ(ta_plan_links(NULL), TA_INVALID_VALUE);
    /* As many as a chain may have, the last one at the end of a page. */
    static ta_link_digit many[63];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + page, page) == 0);
    ta_link_digit *last = (ta_link_digit *)(void *)(pages + page - sizeof *last);
    *last = (ta_link_digit){TA_LINK_DIGIT, NULL, 7, 0};
    for (int i = 0; i < 63; i++)
        many[i] = (ta_link_digit){TA_LINK_DIGIT, i < 62 ? (void *)&many[i + 1] : (void *)last, 0, 0};
    plan.next = many;
    CHECK_EQ(ta_plan_make(&plan), TA_OK);
    CHECK(plan.links == 64 && plan.number == 7 && last->place == 64);
}

static void remoted(void) {
    /* The name has a pointer: one function leaves it out, the other refuses it. */
    ta_link_digit two = {TA_LINK_DIGIT, NULL, 2, 0};
    ta_link_name name = {TA_LINK_NAME, &two, "name"};
    ta_link_digit strange = {4711, &name, 9, 5}, one = {TA_LINK_DIGIT, &strange, 1, 0};
    ta_plan plan = {&one, 99, 99};
    CHECK_EQ(ta_plan_make(&plan), TA_OK);
    CHECK(plan.number == 12 && plan.links == 2);
    CHECK(one.place == 1 && two.place == 2 && strange.place == 5);
    CHECK(strange.next == &name && name.next == &two);
    CHECK_EQ(ta_plan_links(&plan), TA_REFUSED);
    one.next = &two;
    CHECK_EQ(ta_plan_links(&plan), 2);
    /* No end. */
    two.next = &one;
    plan.links = 55;
    CHECK_EQ(ta_plan_make(&plan), TA_REFUSED);
    CHECK_EQ(ta_plan_links(&plan), TA_REFUSED);
    CHECK_EQ(plan.links, 55);
    two.next = &two;
    CHECK_EQ(ta_plan_make(&plan), TA_REFUSED);
    CHECK(one.place == 1 && two.place == 2);
}

int main(int argc, char **argv) {
    (void)argv;
    equal();
    if (argc > 1)
        remoted();
    return check_done();
}
