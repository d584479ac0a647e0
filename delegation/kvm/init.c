/* The first process of a Linux in the emulator: what an exit of a VM costs under Debian's unmodified KVM, counted in ticks.
 *
 * A VM of one page makes exits that do nothing. Output is port 0xe9, the end "Shutdown" at port 0x8900. */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROUNDS "2000"
enum { ROUND_COUNT = 2000, MEMORY = 0x10000, CODE = 0x1000 };

static void say(const char *text)
{
    while (*text) outb(*text++, 0xe9);
}

static _Noreturn void power_off(void)
{
    for (const char *word = "Shutdown"; *word; word++) outb(*word, 0x8900);
    for (;;) pause();
}

static int need(int result, const char *what)
{
    char line[128];
    if (result >= 0) return result;
    snprintf(line, sizeof line, "FAIL init: %s: %m\n", what);
    say(line);
    power_off();
}

static void load(const char *module)
{
    int file = need(open(module, O_RDONLY), module);
    need((int)syscall(SYS_finit_module, file, "", 0), module);
    close(file);
}

/* The guest, in 16-bit mode: three loops, each between two readings of the counter; the difference goes to a port. */
__asm__(".code16\n"
        "guest_start:\n"
        ".macro TIMED port, body\n"
        "    rdtsc\n"
        "    mov %eax, %esi\n"
        "    mov $" ROUNDS ", %ebp\n"
        "1:  \\body\n"
        "    dec %ebp\n"
        "    jnz 1b\n"
        "    rdtsc\n"
        "    sub %esi, %eax\n"
        "    out %eax, $\\port\n"
        ".endm\n"
        "    TIMED 0x10, nop\n"
        "    TIMED 0x10, nop\n"
        "    TIMED 0x11, \"xor %eax, %eax; xor %ecx, %ecx; cpuid\"\n"
        "    TIMED 0x12, \"mov $99, %eax; vmcall\"\n"
        "    hlt\n"
        "guest_end:\n"
        ".code64\n");
extern const char guest_start[], guest_end[];

static struct kvm_run *make_vm(int *vcpu)
{
    int kvm = need(open("/dev/kvm", O_RDWR), "/dev/kvm");
    int vm = need(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
    char *memory = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct kvm_userspace_memory_region region = {.memory_size = MEMORY, .userspace_addr = (uint64_t)memory};
    need(ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000), "KVM_SET_TSS_ADDR");
    need(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
    memcpy(memory + CODE, guest_start, guest_end - guest_start);
    *vcpu = need(ioctl(vm, KVM_CREATE_VCPU, 0), "KVM_CREATE_VCPU");
    struct kvm_sregs special;
    need(ioctl(*vcpu, KVM_GET_SREGS, &special), "KVM_GET_SREGS");
    special.cs.selector = 0;
    special.cs.base = 0;
    need(ioctl(*vcpu, KVM_SET_SREGS, &special), "KVM_SET_SREGS");
    struct kvm_regs registers = {.rip = CODE, .rsp = MEMORY - 16, .rflags = 2};
    need(ioctl(*vcpu, KVM_SET_REGS, &registers), "KVM_SET_REGS");
    return mmap(0, need(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "size"), PROT_READ | PROT_WRITE, MAP_SHARED, *vcpu, 0);
}

int main(void)
{
    int vcpu;
    char line[128];
    iopl(3);
    mkdir("/dev", 0755);
    mount("dev", "/dev", "devtmpfs", 0, 0);
    load("/irqbypass.ko");
    load("/kvm.ko");
    load("/kvm-intel.ko");
    struct kvm_run *run = make_vm(&vcpu);
    static const char *const names[] = {"loop", "cpuid", "vmcall"};
    for (;;) {
        need(ioctl(vcpu, KVM_RUN, 0), "KVM_RUN");
        if (run->exit_reason != KVM_EXIT_IO) break;
        uint32_t ticks = *(uint32_t *)((char *)run + run->io.data_offset);
        snprintf(line, sizeof line, "%s %u\n", names[(run->io.port - 0x10) % 3], ticks / ROUND_COUNT);
        say(line);
    }
    say(run->exit_reason == KVM_EXIT_HLT ? "end\n" : "FAIL init: the VM ended with another exit\n");
    power_off();
}
