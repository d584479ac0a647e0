/* The one function that a PJRT plug-in exports. */
#pragma once
#include <pjrt_c_api.h>

const PJRT_Api *GetPjrtApi(void);
