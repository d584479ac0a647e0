/* A device and a part of it (an OpenCL sub-device), used in turn and together: for the scheduler they are one device.
 *   partition ROUNDS */
#include "common.h"

static const char *const source = "kernel void add(global uint *sum) {\n"
                                  "  for (uint i = 0; i < 20000; i++) atomic_add(sum, 1);\n"
                                  "}\n";

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    struct device d = open_device(0);
    const cl_device_partition_property half[] = {CL_DEVICE_PARTITION_EQUALLY, 1, 0};
    cl_device_id all[64];
    cl_uint count = 0;
    MUST(clCreateSubDevices(d.device, half, 64, all, &count));
    cl_device_id both[] = {d.device, all[0]};
    cl_int status;
    cl_context context = clCreateContext(NULL, 2, both, NULL, NULL, &status);
    MUST(status);
    cl_program program = clCreateProgramWithSource(context, 1, (const char *[]){source}, NULL, &status);
    MUST(status);
    MUST(clBuildProgram(program, 2, both, "", NULL, NULL));
    cl_command_queue queues[2];
    cl_mem sums[2];
    cl_kernel kernels[2];
    for (int i = 0; i < 2; i++) {
        queues[i] = clCreateCommandQueue(context, both[i], 0, &status);
        MUST(status);
        sums[i] = clCreateBuffer(context, CL_MEM_COPY_HOST_PTR, sizeof(cl_uint), &(cl_uint){0}, &status);
        MUST(status);
        kernels[i] = kernel_of(program, "add");
        MUST(clSetKernelArg(kernels[i], 0, sizeof sums[i], &sums[i]));
    }
    const size_t one = 1;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 2; i++) {
            MUST(clEnqueueNDRangeKernel(queues[i], kernels[i], 1, NULL, &one, NULL, 0, NULL, NULL));
            /* Sometimes the other one gets its work while this one is busy. */
            if (round % 3)
                MUST(clFinish(queues[i]));
        }
    for (int i = 0; i < 2; i++) {
        cl_uint sum = 0;
        MUST(clEnqueueReadBuffer(queues[i], sums[i], CL_TRUE, 0, sizeof sum, &sum, 0, NULL, NULL));
        if (sum != 20000u * (cl_uint)rounds) {
            printf("%u instead of %u\n", sum, 20000u * (cl_uint)rounds);
            return 1;
        }
    }
    return 0;
}
