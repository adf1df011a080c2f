// Which instruction sets there are kernels for, and which of them the processor has.
#include "isa.h"

#include <stdexcept>

#ifdef PAGEINN_X86
#include <cpuid.h>
#endif

namespace pageinn {
namespace {

#ifdef PAGEINN_X86
// Compilers differ in whether __builtin_cpu_supports knows this one.
bool has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// An instruction set that kernels were written for, best first.
struct Isa {
    const char* name;
    bool (*present)();
    const char* needs;
    const Kernels& (*kernels)();
};
constexpr Isa kIsas[] = {
#ifdef PAGEINN_X86
    {"avx512_bf16", has_avx512_bf16, "AVX-512 (F, BW, DQ, VL, VNNI, BF16)", avx512_bf16_kernels},
    {"avx512", has_avx512, "AVX-512 (F, BW, DQ, VL, VNNI)", avx512_kernels},
    {"avx2", has_avx2, "AVX2, FMA and F16C", avx2_kernels},
#endif
    {"portable", [] { return true; }, "", portable_kernels}};

}  // namespace

const Kernels& kernels_for(const std::string& name) {
    std::string names = "auto";
    for (const Isa& isa : kIsas) {
        if (name == isa.name && !isa.present())
            throw std::invalid_argument("isa '" + name + "': this processor lacks some of " + isa.needs +
                                        "; use 'auto'");
        if (name == isa.name || (name == "auto" && isa.present())) return isa.kernels();
        names += std::string(", ") + isa.name;
    }
    throw std::invalid_argument("isa '" + name + "' is not one of " + names);
}

}  // namespace pageinn
