// The kernels, written once over eight-lane vectors. Included by every instruction set's file inside an anonymous
// namespace, after F8, I8, splat, load, store_types.h, store, fma, to_float, splat_bytes, dot,
// exponentials_of, Wide and its functions, and kIsa.
//
// Every function does the same operations in the same order for a row (or a row and output, or a row and key),
// however many rows stand beside it: that is what makes results independent of batching. Tiles differ only in how
// many rows share a load. No operation here is left to the compiler to reorder or contract (-ffp-contract=off).

#include "vector_math.h"

#include "kernels_attention.h"
#include "kernels_linear.h"
#include "kernels_rows.h"
#include "kernels_widen.h"

const Kernels kKernels = {kIsa,   false,        quantise_row, linear_int8,  linear_float, rms_norm_row, rotary_row,
                          round_row, attend, widen_e4m3, merge_row,    silu_mul_row, peak,         exponentials};
