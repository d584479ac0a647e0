#include <stddef.h>
#include <stdint.h>
typedef int pt_status;
typedef struct pt_object_s *pt_object;
typedef struct {
    int kind;
    union {
        void *memory;
        pt_object object;
        uint64_t number;
    } value;
} pt_attribute;
typedef struct {
    const int *values;
    int count;
    void *reserved;
} pt_options;
typedef char *(*pt_rename)(const char *name);
typedef void (*pt_hook)(void);
typedef void *pt_four[4];

pt_status pt_end(pt_object object);
pt_status pt_undescribed(void *memory);
pt_status pt_opaque(void *memory);
pt_status pt_opaque_handle(pt_object object);
pt_status pt_opaque_struct(pt_options options);
pt_status pt_member(const pt_options *options);
pt_status pt_element(void **memory, int count);
void *pt_result(void);
pt_status pt_output(void **memory);
pt_status pt_cast(void *memory);
pt_status pt_union(const pt_attribute *attribute);
pt_status pt_array(pt_four *memory);
pt_status pt_function(pt_hook hook);
pt_status pt_renamed(pt_rename rename);
pt_status pt_maybe(void *memory, int given);
pt_status pt_compared(void *memory);
pt_status pt_reserved(const pt_options *options);
pt_status pt_number(uint64_t number);
