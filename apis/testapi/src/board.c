/* Memory that is handed out, and memory that the application and the library use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define PINS 2

/* The cells: freed with the last board that has them. */
struct cells {
    uint32_t references;
    uint8_t *at, *own;
    size_t bytes;
};
struct ta_board_object {
    struct cells *cells;
    struct cells *pinned[PINS];
    char title[16];
};
struct pool {
    ta_pool table;
    uint32_t lent;
};

char library_told[32] = "nothing";
uint32_t library_boards;

static void *take(ta_pool *pool, size_t bytes) {
    void *p = bytes < 1 << 20 ? calloc(1, bytes + 1) : NULL;
    ((struct pool *)pool)->lent += p != NULL;
    return p;
}
static void give(ta_pool *pool, void *p) {
    ((struct pool *)pool)->lent -= p != NULL;
    free(p);
}
static uint32_t lent(const ta_pool *pool) { return ((const struct pool *)pool)->lent; }

static struct pool pools[] = {{{7, take, give, lent, NULL}, 0}, {{8, take, give, lent, NULL}, 0}};

ta_status ta_pool_get(uint32_t number, ta_pool **pool) {
    if (number >= 2 || !pool)
        return TA_INVALID_VALUE;
    *pool = &pools[number].table;
    return TA_OK;
}
ta_status ta_pool_give(ta_pool *pool, void *p) {
    if (!pool)
        return TA_INVALID_VALUE;
    give(pool, p);
    return TA_OK;
}

static char *copy(ta_pool *pool, const char *text) {
    char *to = take(pool, strlen(text));
    return to ? strcpy(to, text) : NULL;
}
static void let_go(struct cells *cells) {
    if (cells && --cells->references == 0) {
        free(cells->own);
        free(cells);
    }
}

ta_status ta_board_create(uint8_t *cells, size_t bytes, ta_board *board) {
    if (!board || bytes > 1 << 24)
        return TA_INVALID_VALUE;
    ta_board made = calloc(1, sizeof *made);
    made->cells = calloc(1, sizeof *made->cells);
    uint8_t *own = cells ? NULL : calloc(1, bytes + 1);
    *made->cells = (struct cells){1, cells ? cells : own, own, bytes};
    snprintf(made->title, sizeof made->title, "board %u", library_boards++ % 3);
    *board = made;
    return TA_OK;
}
ta_status ta_board_destroy(ta_board board) {
    if (!board)
        return TA_INVALID_VALUE;
    let_go(board->cells);
    for (int i = 0; i < PINS; i++)
        let_go(board->pinned[i]);
    free(board);
    return TA_OK;
}
ta_status ta_board_name(ta_board board, ta_pool *pool, char **name) {
    if (!board || !pool || !name)
        return TA_INVALID_VALUE;
    *name = copy(pool, "a board");
    return TA_OK;
}
ta_status ta_board_words(ta_board board, ta_pool *pool, char ***words, size_t *count) {
    static const char *const all[] = {"made", "of", "cells"};
    if (!board || !pool || !words || !count)
        return TA_INVALID_VALUE;
    *count = 3;
    *words = take(pool, 3 * sizeof **words);
    for (size_t i = 0; i < 3; i++)
        (*words)[i] = copy(pool, all[i]);
    return TA_OK;
}
ta_status ta_board_title(ta_board board, const char **title) {
    if (!board || !title)
        return TA_INVALID_VALUE;
    *title = board->title;
    return TA_OK;
}
const char *ta_board_told(void) { return library_told; }
ta_status ta_board_cells(ta_board board, uint8_t **cells) {
    if (!board || !cells)
        return TA_INVALID_VALUE;
    *cells = board->cells->at;
    return TA_OK;
}
static void raise(struct cells *to, const struct cells *from, uint8_t value) {
    for (size_t i = 0; i < to->bytes; i++)
        to->at[i] = (uint8_t)(to->at[i] + (from && i < from->bytes ? from->at[i] : 0) + value);
}
ta_status ta_board_add(ta_board to, ta_board from, uint8_t value) {
    if (!to || !from)
        return TA_INVALID_VALUE;
    raise(to->cells, from->cells, value);
    snprintf(library_told, sizeof library_told, "added %u", value);
    return TA_OK;
}
ta_status ta_board_pin(ta_board board, uint32_t pin, ta_board part) {
    if (!board || !part || pin >= PINS)
        return TA_INVALID_VALUE;
    let_go(board->pinned[pin]);
    board->pinned[pin] = part->cells;
    part->cells->references++;
    return TA_OK;
}
ta_status ta_board_raise(ta_board board, uint8_t value) {
    if (!board)
        return TA_INVALID_VALUE;
    for (int i = 0; i < PINS; i++) {
        if (board->pinned[i])
            raise(board->pinned[i], NULL, value);
    }
    return TA_OK;
}
ta_status ta_board_pinned(ta_board board, uint32_t pin, ta_board *part) {
    if (!board || !part || pin >= PINS || !board->pinned[pin])
        return TA_INVALID_VALUE;
    ta_board made = calloc(1, sizeof *made);
    made->cells = board->pinned[pin];
    made->cells->references++;
    *part = made;
    return TA_OK;
}

/* Bytes of a board's state from `offset` on in one piece, at most `most`; NULL: there are none. `got`: how many. It begins
 * with the title; cells follow that are the library's own, the board's and those that are pinned. */
static void *piece(ta_board board, size_t offset, size_t most, size_t *got) {
    uint8_t *at = (uint8_t *)board->title;
    size_t bytes = sizeof board->title;
    for (int i = -1; offset >= bytes; i++) {
        if (i == PINS)
            return NULL;
        const struct cells *cells = i < 0 ? board->cells : board->pinned[i];
        offset -= bytes;
        at = cells ? cells->own : NULL;
        bytes = at ? cells->bytes : 0;
    }
    *got = bytes - offset < most ? bytes - offset : most;
    return at + offset;
}
size_t ta_board_save(ta_board board, size_t offset, void *to, size_t capacity) {
    size_t done = 0, got;
    for (const void *from; done < capacity && (from = piece(board, offset + done, capacity - done, &got)); done += got)
        memcpy((char *)to + done, from, got);
    return done;
}
int ta_board_load(ta_board board, size_t offset, const void *from, size_t bytes) {
    size_t done = 0, got;
    for (void *to; done < bytes && (to = piece(board, offset + done, bytes - done, &got)); done += got)
        memcpy(to, (const char *)from + done, got);
    return done < bytes;
}
