/* Memory that the library hands out, and memory that the application and the library use at any time.
 * boards             what is equal natively and remotely
 * boards remoted     what natively is undefined: memory that is freed twice, that is nobody's, another object's */
#include "check.h"
#include "testapi.h"

#define CELLS 9000

static unsigned sum(const uint8_t *cells, size_t bytes) {
    unsigned all = 0;
    for (size_t i = 0; i < bytes; i++)
        all += cells[i];
    return all;
}

static void handed_out(ta_pool *pool, ta_pool *other) {
    ta_board board = NULL, next = NULL;
    char *name = NULL, *again = NULL, **words = NULL;
    const char *title = NULL, *same = NULL;
    size_t count = 0;
    CHECK_EQ(ta_board_create(NULL, 16, &board), TA_OK);
    CHECK_EQ(ta_board_name(board, pool, &name), TA_OK);
    CHECK_EQ(ta_board_name(board, pool, &again), TA_OK);
    CHECK(name != again && !strcmp(name, "a board") && !strcmp(again, name));
    CHECK_EQ(pool->lent(pool), 2);
    CHECK_EQ(ta_pool_give(pool, name), TA_OK);
    pool->give(pool, again);
    CHECK_EQ(pool->lent(pool), 0);
    CHECK_EQ(ta_board_words(board, other, &words, &count), TA_OK);
    CHECK_EQ(count, 3);
    CHECK(!strcmp(words[0], "made") && !strcmp(words[2], "cells"));
    CHECK_EQ(pool->lent(pool), 0);
    CHECK_EQ(other->lent(other), 4);
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(ta_pool_give(other, words[i]), TA_OK);
    other->give(other, words);
    CHECK_EQ(other->lent(other), 0);
    uint8_t *memory = pool->take(pool, 100);
    CHECK(memory != NULL);
    memset(memory, 1, 100);
    CHECK_EQ(pool->lent(pool), 1);
    pool->give(pool, memory);
    CHECK(pool->take(pool, 1 << 20) == NULL);
    pool->give(pool, NULL);
    CHECK_EQ(ta_pool_give(pool, NULL), TA_OK);
    CHECK_EQ(pool->lent(pool), 0);
    CHECK_EQ(ta_board_title(board, &title), TA_OK);
    CHECK_EQ(ta_board_title(board, &same), TA_OK);
    CHECK(title == same && !strncmp(title, "board ", 6));
    CHECK_EQ(strcmp(ta_board_told(), "nothing"), 0);
    CHECK_EQ(ta_board_create(NULL, 16, &next), TA_OK);
    CHECK_EQ(ta_board_add(board, next, 5), TA_OK);
    CHECK_EQ(strcmp(ta_board_told(), "added 5"), 0);
    CHECK_EQ(ta_board_destroy(next), TA_OK);
    CHECK_EQ(strncmp(title, "board ", 6), 0);
    CHECK_EQ(ta_board_destroy(board), TA_OK);
}

static void both_sides(void) {
    static uint8_t here[CELLS], there[CELLS];
    ta_board own = NULL, bound = NULL, other = NULL;
    uint8_t *cells = NULL, *again = NULL;
    memset(here, 1, CELLS);
    memset(there, 2, CELLS);
    CHECK_EQ(ta_board_create(NULL, CELLS, &own), TA_OK);
    CHECK_EQ(ta_board_create(here, CELLS, &bound), TA_OK);
    CHECK_EQ(ta_board_create(there, CELLS, &other), TA_OK);
    /* The application's own memory is where it was. */
    CHECK_EQ(ta_board_cells(bound, &cells), TA_OK);
    CHECK(cells == here);
    CHECK_EQ(ta_board_add(bound, other, 3), TA_OK);
    CHECK_EQ(sum(here, CELLS), 6 * CELLS);
    CHECK_EQ(sum(there, CELLS), 2 * CELLS);
    there[0] = 12;
    here[CELLS - 1] = 0;
    CHECK_EQ(ta_board_add(bound, other, 0), TA_OK);
    CHECK_EQ(sum(here, CELLS), 8 * CELLS + 10 - 6);
    /* Memory of the library's, which the application reads and writes. */
    CHECK_EQ(ta_board_cells(own, &cells), TA_OK);
    CHECK_EQ(sum(cells, CELLS), 0);
    cells[1] = 9;
    CHECK_EQ(ta_board_cells(own, &again), TA_OK);
    CHECK(cells == again);
    CHECK_EQ(ta_board_add(own, other, 1), TA_OK);
    CHECK_EQ(sum(cells, CELLS), 3 * CELLS + 19);
    cells[2] = 100;
    CHECK_EQ(ta_board_add(bound, own, 0), TA_OK);
    CHECK_EQ(here[2], 108);
    CHECK_EQ(here[1], 8 + 12);
    CHECK_EQ(ta_board_destroy(own), TA_OK);
    CHECK_EQ(ta_board_destroy(other), TA_OK);
    CHECK_EQ(ta_board_destroy(bound), TA_OK);
}

static void pins(void) {
    static uint8_t first[CELLS], second[CELLS];
    ta_board wall = NULL, one = NULL, two = NULL, found = NULL;
    uint8_t *cells = NULL;
    memset(first, 0, CELLS);
    memset(second, 0, CELLS);
    CHECK_EQ(ta_board_create(NULL, 1, &wall), TA_OK);
    CHECK_EQ(ta_board_create(first, CELLS, &one), TA_OK);
    CHECK_EQ(ta_board_create(second, CELLS, &two), TA_OK);
    CHECK_EQ(ta_board_pin(wall, 0, one), TA_OK);
    CHECK_EQ(ta_board_raise(wall, 2), TA_OK);
    CHECK_EQ(sum(first, CELLS), 2 * CELLS);
    /* A board is used as long as it is pinned, whatever is destroyed. */
    CHECK_EQ(ta_board_destroy(one), TA_OK);
    CHECK_EQ(ta_board_pin(wall, 1, two), TA_OK);
    first[0] = 50;
    CHECK_EQ(ta_board_raise(wall, 1), TA_OK);
    CHECK_EQ(first[0], 51);
    CHECK_EQ(sum(first, CELLS), 3 * (CELLS - 1) + 51);
    CHECK_EQ(sum(second, CELLS), CELLS);
    CHECK_EQ(ta_board_pinned(wall, 0, &found), TA_OK);
    CHECK_EQ(ta_board_pin(wall, 0, two), TA_OK);
    CHECK_EQ(ta_board_raise(wall, 1), TA_OK);
    CHECK_EQ(first[0], 51);
    CHECK_EQ(second[0], 3);
    CHECK_EQ(ta_board_destroy(wall), TA_OK);
    CHECK_EQ(ta_board_cells(found, &cells), TA_OK);
    CHECK(cells == first);
    CHECK_EQ(ta_board_destroy(found), TA_OK);
    CHECK_EQ(ta_board_destroy(two), TA_OK);
}

static void remoted(ta_pool *pool) {
    ta_board board = NULL;
    char *name = NULL;
    int nobodys = 0;
    CHECK(pool->trim == NULL);
    CHECK_EQ(ta_board_create(NULL, 16, &board), TA_OK);
    CHECK_EQ(ta_board_name(board, pool, &name), TA_OK);
    CHECK_EQ(ta_pool_give(pool, name + 1), TA_INVALID_VALUE);
    CHECK_EQ(ta_pool_give(pool, &nobodys), TA_INVALID_VALUE);
    CHECK_EQ(ta_pool_give((ta_pool *)(void *)&nobodys, name), TA_REFUSED);
    CHECK_EQ(pool->lent(pool), 1);
    CHECK_EQ(ta_pool_give(pool, name), TA_OK);
    CHECK_EQ(ta_pool_give(pool, name), TA_INVALID_VALUE);
    pool->give(pool, name);
    CHECK_EQ(pool->lent(pool), 0);
    CHECK_EQ(ta_board_destroy(board), TA_OK);
    CHECK(ta_board_add(board, board, 1) != TA_OK);
}

int main(int argc, char **argv) {
    (void)argv;
    ta_pool *pool = NULL, *other = NULL, *same = NULL;
    CHECK_EQ(ta_pool_get(0, &pool), TA_OK);
    CHECK_EQ(ta_pool_get(1, &other), TA_OK);
    CHECK_EQ(ta_pool_get(0, &same), TA_OK);
    CHECK(pool == same && pool != other);
    CHECK_EQ(pool->version, 7);
    CHECK_EQ(other->version, 8);
    handed_out(pool, other);
    both_sides();
    pins();
    if (argc > 1)
        remoted(pool);
    return check_done();
}
