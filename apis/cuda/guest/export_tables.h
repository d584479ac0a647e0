/* The tables of functions that libraries of CUDA (cudart, cuBLAS, cuDNN, cuFFT) ask a driver for by
 * `cuGetExportTable`. They hold values of the calling process (addresses, its id, its thread), so they are
 * answered in that process and never by another one.
 *
 * Used by the guest library and by the reference driver. Apart from the hooks below, the tables call only
 * public functions of cuda.h. */
#ifndef AVIARY_CUDA_EXPORT_TABLES_H
#define AVIARY_CUDA_EXPORT_TABLES_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

/* The answer of `cuGetExportTable`: CUDA_SUCCESS and the table, or an error where the table is refused. */
CUresult export_table_find(const void **table, const CUuuid *id);

/* To be called when a context ended (destroyed, or a primary context reset or released for the last time):
 * forgets what libraries stored for it, calling their destructors. No lock that a call of the driver takes may
 * be held: destructors call the driver. */
void export_tables_context_ended(CUcontext context);

/* --- hooks: the library that contains this file provides them --- */

/* The primary context of a device, whether or not it is active; does not make it active. */
CUresult export_tables_primary_context(CUcontext *context, CUdevice device);

/* For each of the `count` texture processing clusters (pairs of multiprocessors) of a device: the graphics
 * processing cluster that it belongs to, and its place within that one. */
CUresult export_tables_clusters(CUdevice device, size_t count, uint8_t *place, uint8_t *graphics_cluster);

#endif
