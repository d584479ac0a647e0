/* Numbers of the OPAE C API, as OPAE 2 has them. */
#ifndef AVIARY_OPAE_TYPES_ENUM_H
#define AVIARY_OPAE_TYPES_ENUM_H

typedef enum {
    FPGA_OK = 0,
    FPGA_INVALID_PARAM = 1,
    FPGA_BUSY = 2,
    FPGA_EXCEPTION = 3,
    FPGA_NOT_FOUND = 4,
    FPGA_NO_MEMORY = 5,
    FPGA_NOT_SUPPORTED = 6,
    FPGA_NO_DRIVER = 7,
    FPGA_NO_DAEMON = 8,
    FPGA_NO_ACCESS = 9,
    FPGA_RECONF_ERROR = 10
} fpga_result;

typedef enum {
    FPGA_EVENT_INTERRUPT = 0,
    FPGA_EVENT_ERROR = 1,
    FPGA_EVENT_POWER_THERMAL = 2
} fpga_event_type;

typedef enum {
    FPGA_ACCELERATOR_ASSIGNED = 0,
    FPGA_ACCELERATOR_UNASSIGNED = 1
} fpga_accelerator_state;

typedef enum {
    FPGA_DEVICE = 0,
    FPGA_ACCELERATOR = 1
} fpga_objtype;

typedef enum {
    FPGA_IFC_DFL = 0,
    FPGA_IFC_VFIO = 1,
    FPGA_IFC_SIM_DFL = 2,
    FPGA_IFC_SIM_VFIO = 3,
    FPGA_IFC_UIO = 4
} fpga_interface;

/* Flags of fpgaPrepareBuffer. */
enum fpga_buffer_flags {
    FPGA_BUF_PREALLOCATED = 1,
    FPGA_BUF_QUIET = 2,
    FPGA_BUF_READ_ONLY = 4
};

/* Flags of fpgaOpen. */
enum fpga_open_flags {
    FPGA_OPEN_SHARED = 1,
    FPGA_OPEN_HAS_PARENT_AFU = 2
};

/* Flags of fpgaReconfigureSlot. */
enum fpga_reconf_flags {
    FPGA_RECONF_FORCE = 1,
    FPGA_RECONF_SKIP_USRCLK = 2
};

enum fpga_sysobject_flags {
    FPGA_OBJECT_SYNC = 1,
    FPGA_OBJECT_GLOB = 2,
    FPGA_OBJECT_RAW = 4,
    FPGA_OBJECT_RECURSE_ONE = 8,
    FPGA_OBJECT_RECURSE_ALL = 16
};

enum fpga_sysobject_type {
    FPGA_OBJECT_CONTAINER = 1,
    FPGA_OBJECT_ATTRIBUTE = 2
};

enum fpga_metric_type {
    FPGA_METRIC_TYPE_POWER = 0,
    FPGA_METRIC_TYPE_THERMAL = 1,
    FPGA_METRIC_TYPE_PERFORMANCE_CTR = 2,
    FPGA_METRIC_TYPE_AFU = 3,
    FPGA_METRIC_TYPE_UNKNOWN = 4
};

enum fpga_metric_datatype {
    FPGA_METRIC_DATATYPE_INT = 0,
    FPGA_METRIC_DATATYPE_FLOAT = 1,
    FPGA_METRIC_DATATYPE_DOUBLE = 2,
    FPGA_METRIC_DATATYPE_BOOL = 3,
    FPGA_METRIC_DATATYPE_UNKNOWN = 4
};
#endif
