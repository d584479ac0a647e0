/* Which preprocessor the parts of one belong to, on both sides. */
#include <aviary.h>

#include "openvino_types.h"

void note_input(ov_preprocess_input_info_t *const *info, const ov_preprocess_prepostprocessor_t *of) {
    struct part_of *part = info ? metadata(struct part_of, *info) : NULL;
    if (part)
        part->of = (ov_preprocess_prepostprocessor_t *)(uintptr_t)of;
}

void note_output(ov_preprocess_output_info_t *const *info, const ov_preprocess_prepostprocessor_t *of) {
    struct part_of *part = info ? metadata(struct part_of, *info) : NULL;
    if (part)
        part->of = (ov_preprocess_prepostprocessor_t *)(uintptr_t)of;
}
