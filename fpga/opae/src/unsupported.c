/* All that libopae-c does not support. */
#include "objects.h"

/* A card is not managed, has no sensors, and no driver has objects for it. */
#define UNSUPPORTED(function, ...)                   \
    EXPORTED fpga_result function(__VA_ARGS__)       \
    {                                                \
        return FPGA_NOT_SUPPORTED;                   \
    }

UNSUPPORTED(fpgaAssignPortToInterface, fpga_handle fpga, uint32_t interface_num, uint32_t slot_num, int flags)
UNSUPPORTED(fpgaAssignToInterface, fpga_handle fpga, fpga_token accelerator, uint32_t host_interface, int flags)
UNSUPPORTED(fpgaReleaseFromInterface, fpga_handle fpga, fpga_token accelerator)
UNSUPPORTED(fpgaReconfigureSlot, fpga_handle fpga, uint32_t slot, const uint8_t *bitstream, size_t bitstream_len, int flags)
UNSUPPORTED(fpgaReadError, fpga_token token, uint32_t error_num, uint64_t *value)
UNSUPPORTED(fpgaClearError, fpga_token token, uint32_t error_num)
UNSUPPORTED(fpgaClearAllErrors, fpga_token token)
UNSUPPORTED(fpgaGetErrorInfo, fpga_token token, uint32_t error_num, struct fpga_error_info *error_info)
UNSUPPORTED(fpgaGetNumUmsg, fpga_handle handle, uint64_t *value)
UNSUPPORTED(fpgaSetUmsgAttributes, fpga_handle handle, uint64_t value)
UNSUPPORTED(fpgaTriggerUmsg, fpga_handle handle, uint64_t value)
UNSUPPORTED(fpgaGetUmsgPtr, fpga_handle handle, uint64_t **umsg_ptr)
UNSUPPORTED(fpgaSetUserClock, fpga_handle handle, uint64_t high_clk, uint64_t low_clk, int flags)
UNSUPPORTED(fpgaGetUserClock, fpga_handle handle, uint64_t *high_clk, uint64_t *low_clk, int flags)
UNSUPPORTED(fpgaGetNumMetrics, fpga_handle handle, uint64_t *num_metrics)
UNSUPPORTED(fpgaGetMetricsInfo, fpga_handle handle, fpga_metric_info *metric_info, uint64_t *num_metrics)
UNSUPPORTED(fpgaGetMetricsByIndex, fpga_handle handle, uint64_t *metric_num, uint64_t num_metric_indexes, fpga_metric *metrics)
UNSUPPORTED(fpgaGetMetricsByName, fpga_handle handle, char **metrics_names, uint64_t num_metric_names, fpga_metric *metrics)
UNSUPPORTED(fpgaGetMetricsThresholdInfo, fpga_handle handle, struct metric_threshold *metric_thresholds, uint32_t *num_thresholds)
UNSUPPORTED(fpgaTokenGetObject, fpga_token token, const char *name, fpga_object *object, int flags)
UNSUPPORTED(fpgaHandleGetObject, fpga_handle handle, const char *name, fpga_object *object, int flags)
UNSUPPORTED(fpgaObjectGetObject, fpga_object parent, const char *name, fpga_object *object, int flags)
UNSUPPORTED(fpgaObjectGetObjectAt, fpga_object parent, size_t idx, fpga_object *object)
UNSUPPORTED(fpgaObjectGetType, fpga_object obj, enum fpga_sysobject_type *type)
UNSUPPORTED(fpgaObjectGetName, fpga_object obj, char *name, size_t max_len)
UNSUPPORTED(fpgaDestroyObject, fpga_object *obj)
UNSUPPORTED(fpgaObjectGetSize, fpga_object obj, uint32_t *value, int flags)
UNSUPPORTED(fpgaObjectRead, fpga_object obj, uint8_t *buffer, size_t offset, size_t len, int flags)
UNSUPPORTED(fpgaObjectRead64, fpga_object obj, uint64_t *value, int flags)
UNSUPPORTED(fpgaObjectWrite64, fpga_object obj, uint64_t value, int flags)
UNSUPPORTED(fpgaWriteMMIO512, fpga_handle handle, uint32_t mmio_num, uint64_t offset, const void *value)
UNSUPPORTED(fpgaBindSVA, fpga_handle handle, uint32_t *pasid)
UNSUPPORTED(fpgaBufMemSet, fpga_handle handle, uint64_t wsid, size_t offset, int c, size_t n)
UNSUPPORTED(fpgaBufMemCpyToRemote, fpga_handle handle, uint64_t dest_wsid, size_t dest_offset, void *src, size_t n)
UNSUPPORTED(fpgaBufPoll, fpga_handle handle, uint64_t wsid, size_t offset, int width, uint64_t mask, uint64_t expected_value,
            uint64_t sleep_interval, uint64_t loops_timeout)
UNSUPPORTED(fpgaBufMemCmp, fpga_handle handle, uint64_t bufa_wsid, size_t bufa_offset, uint64_t bufb_wsid, size_t bufb_offset,
            size_t n, int *result)
UNSUPPORTED(fpgaPropertiesGetLocalMemorySize, const fpga_properties prop, uint64_t *lms)
UNSUPPORTED(fpgaPropertiesSetLocalMemorySize, fpga_properties prop, uint64_t lms)
UNSUPPORTED(fpgaPropertiesGetCapabilities, const fpga_properties prop, uint64_t *capabilities)
UNSUPPORTED(fpgaPropertiesSetCapabilities, fpga_properties prop, uint64_t capabilities)
UNSUPPORTED(fpgaPropertiesGetModel, const fpga_properties prop, char *model)
UNSUPPORTED(fpgaPropertiesSetModel, fpga_properties prop, char *model)
