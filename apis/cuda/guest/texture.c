/* Textures and surfaces: the array that they read, if it is one, travels as a handle. */
#include "guest/objects.h"

CUresult cuda_texture(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *description,
                      const CUDA_RESOURCE_VIEW_DESC *view) {
    if (!texture || !resource || !description)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_RESOURCE_DESC plain = *resource;
    CUarray array = NULL;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        array = resource->res.array.hArray;
        plain.res.array.hArray = NULL;
        break;
    case CU_RESOURCE_TYPE_LINEAR:
    case CU_RESOURCE_TYPE_PITCH2D:
        break;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return aviaryTexture(texture, &plain, array, description, view);
}

CUresult cuda_surface(CUsurfObject *surface, const CUDA_RESOURCE_DESC *resource) {
    if (!surface || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    return aviarySurface(surface, resource->res.array.hArray);
}
