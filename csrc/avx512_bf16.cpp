// What avx512.cpp has, and attention over bfloat16 in pairs (BF16). Like avx2.cpp it must define nothing else
// with external linkage.
#include "kernels.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

namespace pageinn {
namespace {

#include "avx_vectors.h"
#include "wide16.h"

constexpr const char* kIsa = "avx512_bf16";

#include "kernels_impl.h"
#include "kernels_pairs.h"
#include "kernels_vnni.h"
#include "kernels_widen_pairs.h"

Kernels with_pairs(Kernels kernels) {
    kernels.attend = attend_with_pairs;
    kernels.widen = widen_to_pairs;
    kernels.pairs = true;
    return kernels;
}

}  // namespace

const Kernels& avx512_bf16_kernels() {
    static const Kernels kernels = with_pairs(with_byte_products(kKernels));
    return kernels;
}

}  // namespace pageinn
