/* A header with everything that `aviary spec init` guesses from. */
#ifndef GUESSES_H
#define GUESSES_H
#include <stddef.h>
#include <stdint.h>

#define _In_
#define _Out_
#define _Outptr_
#define _In_reads_(n)

typedef struct gs_object_s *gs_object;
typedef struct gs_item_s gs_item;
typedef enum { GS_BAD = 3, GS_OK = 0 } gs_status;
typedef struct { unsigned int version; uint64_t total, free; } gs_memory;
typedef struct { int width, height; } gs_shape;
typedef void (*gs_notify)(gs_object object, const char *text, void *user);

gs_status gs_object_create(const gs_shape *shape, gs_object *object);
gs_status gs_object_destroy(gs_object object);
gs_status gs_object_get_count(gs_object object, size_t *count);
gs_status gs_object_get_memory(gs_object object, gs_memory *memory);
gs_status gs_object_get_items(gs_object object, unsigned int *count, uint64_t *items);
gs_status gs_object_info(gs_object object, int name, size_t value_size, void *value, size_t *value_size_ret);
gs_status gs_write(gs_object object, const void *from, size_t bytes);
gs_status gs_launch(gs_object object, uint32_t num_waits, const gs_object *waits, gs_object *event);
gs_status gs_text(gs_object object, const char *text, size_t text_length);
gs_status gs_listen(gs_object object, gs_notify notify, void *user_data);
gs_status gs_advise(gs_object object, const void *ptr, size_t size);
/** @param[out] high the result
 *  @param[in] low where it begins */
gs_status gs_range(int *high, int *low);
gs_status gs_marked(_In_reads_(n) const int *a, int n, _Outptr_ gs_item **out, _Out_ double *d);
gs_status gs_shutdown();
void gs_item_free(gs_item *item);
void gs_text_free(const char *text);
const char *gs_item_name(const gs_item *item);

struct gs_api {
  size_t struct_size;
  gs_status (*open)(const char *name, gs_object *object);
  gs_status (*close)(gs_object object);
  void (*flush)(void);
  int (*level)(gs_object object);
  gs_status (*read)(gs_object object, void *to, size_t bytes);
};
const struct gs_api *gs_get_api(uint32_t version);

/* The application fills this one. */
struct gs_allocator {
  void *(*alloc)(struct gs_allocator *self, size_t bytes);
  void (*free)(struct gs_allocator *self, void *p);
  void (*trim)(struct gs_allocator *self);
  size_t (*used)(struct gs_allocator *self);
};
gs_status gs_set_allocator(const struct gs_allocator *allocator);
#endif
