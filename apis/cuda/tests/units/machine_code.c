/* Machine code on the reference driver: what can be known without running it, and launches that do nothing
 * (REFCUDA_MACHINE_CODE=skip). The code is made here, in the form of NVIDIA's compilers, without any instruction. */
#include <elf.h>
#include <stddef.h>

#include "../driver/common.h"

enum { NONE, NAMES, SYMBOLS, TEXT, INFO, KERNEL_INFO, VARIABLES, SHARED, SECTIONS };
enum { KERNEL = 1, NUMBERS = 2, STO_CUDA_ENTRY = 0x10 };

static const char names[] = "\0.strtab\0.symtab\0.text.work\0.nv.info\0.nv.info.work\0.nv.global.init\0.nv.shared.work\0work\0numbers";

struct cubin {
    Elf64_Ehdr header;
    Elf64_Shdr sections[SECTIONS];
    Elf64_Sym symbols[3];
    uint32_t info[6];
    uint32_t kernel_info[13];
    uint32_t numbers[4];
    char names[sizeof(names)];
    char text[128];
};

static uint32_t name_of(const char *name)
{
    uint32_t at = 1;

    while (strcmp(names + at, name) != 0)
        at += (uint32_t)strlen(names + at) + 1;
    return at;
}

#define INFORMATION(number, size) (4u | (number) << 8 | (uint32_t)(size) << 16)
#define SECTION(called, kind, member, information)                                                               \
    {                                                                                                            \
        .sh_name = name_of(called), .sh_type = (kind), .sh_offset = offsetof(struct cubin, member),              \
        .sh_size = sizeof(((struct cubin *)0)->member), .sh_link = NAMES, .sh_info = (information),              \
    }

static struct cubin make(void)
{
    struct cubin cubin = {
        .header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT, 0x41, 8}, .e_type = ET_EXEC, .e_machine = EM_CUDA,
                   .e_version = 1, .e_shoff = offsetof(struct cubin, sections), .e_flags = 0x6005a04, .e_ehsize = sizeof(Elf64_Ehdr),
                   .e_shentsize = sizeof(Elf64_Shdr), .e_shnum = SECTIONS, .e_shstrndx = NAMES},
        .symbols[KERNEL] = {.st_name = name_of("work"), .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_other = STO_CUDA_ENTRY,
                            .st_shndx = TEXT, .st_size = 128},
        .symbols[NUMBERS] = {.st_name = name_of("numbers"), .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), .st_shndx = VARIABLES,
                             .st_value = 4, .st_size = 12},
        /* 40 registers; 16 bytes of stack. */
        .info = {INFORMATION(0x2f, 8), KERNEL, 40, INFORMATION(0x11, 8), KERNEL, 16},
        /* Parameters: 4 bytes at 8, then 8 bytes at 0 (their order in the file is free); at most 256 x 2 threads. */
        .kernel_info = {INFORMATION(0x17, 12), 0, 1 | 8u << 16, 4u << 18, INFORMATION(0x17, 12), 0, 0, 8u << 18,
                        INFORMATION(0x05, 12), 256, 2, 1, 3u | 0x19u << 8 | 12u << 16},
        .numbers = {1, 2, 3, 4},
    };
    const Elf64_Shdr sections[SECTIONS] = {
        [NAMES] = SECTION(".strtab", SHT_STRTAB, names, 0),
        [SYMBOLS] = SECTION(".symtab", SHT_SYMTAB, symbols, 0),
        [TEXT] = SECTION(".text.work", SHT_PROGBITS, text, 0),
        [INFO] = SECTION(".nv.info", 0x70000000, info, 0),
        [KERNEL_INFO] = SECTION(".nv.info.work", 0x70000000, kernel_info, TEXT),
        [VARIABLES] = SECTION(".nv.global.init", SHT_PROGBITS, numbers, 0),
        [SHARED] = {.sh_name = name_of(".nv.shared.work"), .sh_type = SHT_NOBITS, .sh_size = 2048, .sh_info = TEXT},
    };

    memcpy(cubin.sections, sections, sizeof(sections));
    memcpy(cubin.names, names, sizeof(names));
    return cubin;
}

static void know(CUmodule module)
{
    static const CUfunction_attribute attributes[] = {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        CU_FUNC_ATTRIBUTE_NUM_REGS,
    };
    CUfunction work;
    size_t offset, size;
    CUdeviceptr address;
    uint32_t numbers[3];

    MUST(cuModuleGetFunction(&work, module, "work"));
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        int value;
        MUST(cuFuncGetAttribute(&value, attributes[i], work));
        printf("attribute %d: %d\n", attributes[i], value);
    }
    for (size_t i = 0; cuFuncGetParamInfo(work, i, &offset, &size) == CUDA_SUCCESS; i++)
        printf("parameter %zu: %zu bytes at %zu\n", i, size, offset);
    MUST(cuModuleGetGlobal(&address, &size, module, "numbers"));
    MUST(cuMemcpyDtoH(numbers, address, sizeof(numbers)));
    printf("numbers: %zu bytes, %u %u %u\n", size, numbers[0], numbers[1], numbers[2]);
}

static void launch(CUmodule module)
{
    CUdeviceptr memory;
    uint32_t value = 7;
    CUfunction work;
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    CUlaunchConfig config = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1,
                             .attrs = &cluster, .numAttrs = 1};

    MUST(cuModuleGetFunction(&work, module, "work"));
    MUST(cuMemAlloc(&memory, sizeof(value)));
    MUST(cuMemcpyHtoD(memory, &value, sizeof(value)));
    void *parameters[] = {&memory, &value};
    TELL(cuLaunchKernel(work, 1, 1, 1, 512, 1, 1, 0, NULL, parameters, NULL));
    TELL(cuLaunchKernel(work, 1, 1, 1, 513, 1, 1, 0, NULL, parameters, NULL));
    TELL(cuFuncSetAttribute(work, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    TELL(cuLaunchKernelEx(&config, work, parameters, NULL));
    MUST(cuMemcpyDtoH(&value, memory, sizeof(value)));
    printf("its memory afterwards: %u\n", value);
    MUST(cuMemFree(memory));
}

/* The image of a fat binary for these devices: its machine code rather than its text, and none for others. */
static void choose(const struct cubin *cubin)
{
    static const char text[88] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry text()\n{\nret;\n}\n";
    struct entry {
        uint16_t kind, version;
        uint32_t header;
        uint64_t size;
        uint32_t compressed, options;
        uint16_t minor, major;
        uint32_t architecture, name_offset, name_length;
        uint64_t flags, unused, text_size;
    };
    struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t size;
        struct entry text_entry;
        char text[sizeof(text)];
        struct entry other_entry;
        char other[8];
        struct entry entry;
        struct cubin cubin;
    } fat = {
        .magic = 0xba55ed50,
        .version = 1,
        .header = 16,
        .size = sizeof(fat) - 16,
        .text_entry = {.kind = 1, .header = sizeof(struct entry), .size = sizeof(fat.text), .architecture = 90},
        .other_entry = {.kind = 2, .header = sizeof(struct entry), .size = sizeof(fat.other), .architecture = 100},
        .entry = {.kind = 2, .header = sizeof(struct entry), .size = sizeof(fat.cubin), .architecture = 90},
        .cubin = *cubin,
    };
    CUmodule module;
    CUfunction function;

    memcpy(fat.text, text, sizeof(text));
    MUST(cuModuleLoadData(&module, &fat));
    TELL(cuModuleGetFunction(&function, module, "work"));
    MUST(cuModuleUnload(module));
    fat.entry.architecture = 100;
    MUST(cuModuleLoadData(&module, &fat));
    TELL(cuModuleGetFunction(&function, module, "text"));
    MUST(cuModuleUnload(module));
}

int main(void)
{
    struct cubin cubin = make();
    CUcontext context = start();
    CUmodule module;
    CUlibrary library;
    unsigned count;

    if (cuModuleLoadData(&module, &cubin) == CUDA_ERROR_NO_BINARY_FOR_GPU) {
        puts("machine code is refused");
        return 0;
    }
    know(module);
    launch(module);
    MUST(cuModuleUnload(module));
    MUST(cuLibraryLoadData(&library, &cubin, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryGetKernelCount(&count, library));
    printf("kernels of a library: %u\n", count);
    MUST(cuLibraryUnload(library));
    choose(&cubin);
    cubin.sections[SYMBOLS].sh_link = SECTIONS;
    TELL(cuModuleLoadData(&module, &cubin));
    MUST(cuCtxDestroy(context));
    puts("ok machine_code");
    return 0;
}
