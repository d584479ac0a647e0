/* The one function that a PJRT plug-in exports, and one of our own. */
#pragma once
#include <pjrt_c_api.h>

const PJRT_Api *GetPjrtApi(void);

/* An object that a call has handed out together with a function that ends it. Guests end it by this. */
typedef struct PJRT_Handed PJRT_Handed;
void aviary_pjrt_end(PJRT_Handed *handed);
