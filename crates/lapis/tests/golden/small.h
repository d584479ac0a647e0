#include <stddef.h>
typedef struct vector_s *vector;
#define VECTOR_EMPTY ((vector)0x1)
typedef struct matrix_s *matrix;
typedef int status;
#define STATUS_OK 0
#define STATUS_FULL 1
#define STATUS_GONE 2
typedef void (*visitor)(float value, void *context);

status vector_create(vector *v, size_t capacity);
status vector_append(vector v, const float *values, size_t count);
status vector_read(vector v, float *values, size_t capacity, size_t *count);
status vector_visit(vector v, visitor visit, void *context);
status vector_clone(vector from, size_t count, vector *v);
vector vector_of(float value);
status vector_capacity(vector v, size_t *capacity); /* of a matrix, too */
status vector_view(vector v, matrix *view);
matrix vector_square(vector v);
status vector_rows(vector v, size_t count, matrix *rows);
status vector_tag(vector v, void *tag, const void *next); /* `next`: for later versions */
status vector_destroy(vector v);
