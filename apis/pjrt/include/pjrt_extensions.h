/* Tables of functions that PJRT_Api's `extension_start` leads to, of version 0.115, as far as they are described. */
#pragma once
#include <pjrt_c_api.h>

/* The type of an extension behind those of pjrt_c_api.h. */
enum { PJRT_Extension_Type_Shardings_0_115 = 19 };

typedef struct PJRT_Layouts_MemoryLayout PJRT_Layouts_MemoryLayout;
typedef struct PJRT_Layouts_SerializedLayout PJRT_Layouts_SerializedLayout;
typedef struct PJRT_Layouts_MemoryLayout_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Layouts_MemoryLayout *layout;
} PJRT_Layouts_MemoryLayout_Destroy_Args;
typedef struct PJRT_Layouts_MemoryLayout_Serialize_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Layouts_MemoryLayout *layout;
  const char *serialized_bytes;
  size_t serialized_bytes_size;
  PJRT_Layouts_SerializedLayout *serialized_layout;
  void (*serialized_layout_deleter)(PJRT_Layouts_SerializedLayout *layout);
} PJRT_Layouts_MemoryLayout_Serialize_Args;
typedef struct PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Buffer_Type type;
  const int64_t *dims;
  size_t num_dims;
  PJRT_Layouts_MemoryLayout *layout;
} PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args;
typedef struct PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Layouts_MemoryLayout *layout;
} PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args;
typedef struct PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_TopologyDescription *topology_description;
  PJRT_Buffer_Type type;
  const int64_t *dims;
  size_t num_dims;
  PJRT_Layouts_MemoryLayout *layout;
} PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args;
typedef struct PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_outputs;
  PJRT_Layouts_MemoryLayout **layouts;
} PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args;
typedef struct PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_parameters;
  PJRT_Layouts_MemoryLayout **layouts;
} PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args;
typedef struct PJRT_Layouts_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_Layouts_MemoryLayout_Destroy)(PJRT_Layouts_MemoryLayout_Destroy_Args *args);
  PJRT_Error *(*PJRT_Layouts_MemoryLayout_Serialize)(PJRT_Layouts_MemoryLayout_Serialize_Args *args);
  PJRT_Error *(*PJRT_Layouts_PJRT_Client_GetDefaultLayout)(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *args);
  PJRT_Error *(*PJRT_Layouts_PJRT_Buffer_MemoryLayout)(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *args);
  PJRT_Error *(*PJRT_Layouts_PJRT_Topology_GetDefaultLayout)(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *args);
  PJRT_Error *(*PJRT_Layouts_PJRT_Executable_GetOutputLayouts)(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *args);
  PJRT_Error *(*PJRT_Layouts_PJRT_Executable_GetParameterLayouts)(
      PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args *args);
} PJRT_Layouts_Extension;

typedef struct PJRT_Shardings_PJRT_Executable_ParameterShardings_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_parameters;
  const char *const *shardings;
  const size_t *sharding_sizes;
} PJRT_Shardings_PJRT_Executable_ParameterShardings_Args;
typedef struct PJRT_Shardings_PJRT_Executable_OutputShardings_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_outputs;
  const char *const *shardings;
  const size_t *sharding_sizes;
} PJRT_Shardings_PJRT_Executable_OutputShardings_Args;
typedef struct PJRT_Shardings_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_Shardings_PJRT_Executable_ParameterShardings)(
      PJRT_Shardings_PJRT_Executable_ParameterShardings_Args *args);
  PJRT_Error *(*PJRT_Shardings_PJRT_Executable_OutputShardings)(PJRT_Shardings_PJRT_Executable_OutputShardings_Args *args);
} PJRT_Shardings_Extension;

typedef struct PJRT_MemoryDescription PJRT_MemoryDescription;
typedef struct PJRT_DeviceDescription_MemoryDescriptions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  const PJRT_MemoryDescription *const *memory_descriptions;
  size_t num_memory_descriptions;
  size_t default_memory_index;
} PJRT_DeviceDescription_MemoryDescriptions_Args;
typedef struct PJRT_MemoryDescription_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_MemoryDescription *memory_description;
  const char *kind;
  size_t kind_size;
  int kind_id;
} PJRT_MemoryDescription_Kind_Args;
typedef struct PJRT_MemoryDescriptions_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_DeviceDescription_MemoryDescriptions)(PJRT_DeviceDescription_MemoryDescriptions_Args *args);
  PJRT_Error *(*PJRT_MemoryDescription_Kind)(PJRT_MemoryDescription_Kind_Args *args);
} PJRT_MemoryDescriptions_Extension;

/* What the first word of these objects points to, from version 105 (memories) and 112 (errors) on. */
typedef struct PJRT_Memory_FunctionTable {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  size_t instance_struct_size;
  void *(*get_user_data)(PJRT_Memory *memory, const void *key);
  void (*set_user_data)(PJRT_Memory *memory, const void *key, void *data, void (*end)(void *data));
} PJRT_Memory_FunctionTable;
typedef struct PJRT_Error_FunctionTable {
  size_t struct_size;
  size_t instance_size;
  PJRT_Extension_Base *extension_start;
  void (*destroy)(PJRT_Error *error);
  void (*message)(const PJRT_Error *error, const char **text, size_t *size);
  PJRT_Error_Code (*get_code)(const PJRT_Error *error);
  void (*for_each_payload)(const PJRT_Error *error, void *visitor, void *user_arg);
} PJRT_Error_FunctionTable;
