#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace pageinn {
namespace {

// More pieces than threads, so that a thread that starts late or is interrupted does not hold up the others.
constexpr int64_t kPiecesPerThread = 4;
// Fewer where weights are read: memory is fastest in long runs.
constexpr int64_t kTilesPerThread = 2;
// Rows whose quantised activations stay in the second-level cache while weight panels pass by.
constexpr int64_t kRowBlock = 96;
// Work below this many multiplications (or elements of an element-wise operation) is not worth waking a thread for.
constexpr int64_t kSmallProduct = 1 << 16;
constexpr int64_t kSmallElements = 1 << 13;

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
AlignedArray<T> allocate(int64_t count) {
    constexpr size_t kHugePage = 2 << 20;
    const size_t wanted = std::max<size_t>(count * sizeof(T), 1);
    const size_t alignment = wanted >= kHugePage ? kHugePage : 64;
    const size_t size = divide_up(wanted, alignment) * alignment;
    void* p = std::aligned_alloc(alignment, size);
    if (p == nullptr) throw std::bad_alloc();
#ifdef __linux__
    // Weights are streamed once per step: large pages spare the address translation. Advice only.
    if (alignment == kHugePage) madvise(p, size, MADV_HUGEPAGE);
#endif
    std::memset(p, 0, size);
    return AlignedArray<T>(static_cast<T*>(p));
}

void allocate(PackedLinear& packed) {
    if (packed.int8) packed.bytes = allocate<uint8_t>(packed.num_bytes());
    packed.floats = allocate<float>(packed.num_floats());
}

// Copies with all threads.
void copy_in_pieces(Engine& e, const void* from, int64_t bytes, void* to) {
    constexpr int64_t kPiece = 4 << 20;
    const int64_t pieces = divide_up(bytes, kPiece);
    if (pieces == 0) return;
    e.pool.parallel_for(pieces, [&](int64_t piece) {
        const int64_t begin = piece * kPiece, count = std::min(kPiece, bytes - begin);
        std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, count);
    });
}

// Calls body(row) for every row, in as few pieces as the work deserves.
template <class Body>
void for_rows(Engine& e, int64_t rows, int64_t elements_per_row, Body body) {
    const int64_t worthwhile = rows * elements_per_row / kSmallElements;
    const int64_t pieces = std::clamp<int64_t>(worthwhile, 1, std::min(rows, e.pool.threads() * kPiecesPerThread));
    if (rows == 0) return;
    e.pool.parallel_for(pieces, [&](int64_t piece) {
        for (int64_t row = rows * piece / pieces; row < rows * (piece + 1) / pieces; ++row) body(row);
    });
}

void pack_float_panel(const Matrix<const float>& weight, int64_t panel, float* to) {
    const int64_t count = std::min<int64_t>(kPanel, weight.rows - panel * kPanel);
    for (int64_t i = 0; i < count; ++i) {
        const float* from = weight.row(panel * kPanel + i);
        for (int64_t k = 0; k < weight.columns; ++k) to[k * kPanel + i] = from[k];
    }
}

// Quantises one output's group of weights: absmax / 63, rounded half to even.
float pack_group(const float* from, int64_t count, uint8_t* to) {
    constexpr float kShifter = 12582912.0f;  // 1.5 * 2**23: adding it rounds to an integer
    float largest = 0;
    for (int64_t k = 0; k < count; ++k) largest = std::max(largest, std::fabs(from[k]));
    if (largest < 1e-30f) largest = 0;
    const float inverse = largest > 0 ? 63.0f / largest : 0.0f;
    for (int64_t k = 0; k < kGroup; ++k) {
        const float rounded = k < count ? (from[k] * inverse + kShifter) - kShifter : 0.0f;
        to[k / 4 * kPanel * 4 + k % 4] = static_cast<uint8_t>(static_cast<int>(rounded) + kWeightOffset);
    }
    return largest / 63.0f;
}

void pack_int8_panel(const Matrix<const float>& weight, int64_t panel, int64_t groups, uint8_t* bytes, float* scales) {
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t count = std::min<int64_t>(kGroup, weight.columns - g * kGroup);
        for (int64_t i = 0; i < kPanel; ++i) {
            const int64_t output = panel * kPanel + i;
            const bool exists = output < weight.rows;
            const float* from = exists ? weight.row(output) + g * kGroup : nullptr;
            scales[g * kPanel + i] = pack_group(from, exists ? count : 0, bytes + g * kGroup * kPanel + i * 4);
        }
    }
}

// Cuts rows x panels into pieces and calls body(rows, panels) for each.
template <class Body>
void for_tiles(Engine& e, int64_t rows, int64_t panels, int64_t inputs, Body body) {
    const int64_t row_blocks = divide_up(rows, kRowBlock);
    const int64_t work = rows * panels * kPanel * inputs;
    const int64_t wanted = work < kSmallProduct ? 1 : e.pool.threads() * kTilesPerThread;
    const int64_t columns = std::clamp<int64_t>(divide_up(wanted, row_blocks), 1, panels);
    const int64_t pieces = work < kSmallProduct ? 1 : row_blocks * columns;
    if (pieces == 1) return body(Range{0, rows}, Range{0, panels});
    e.pool.parallel_for(pieces, [&](int64_t piece) {
        const int64_t block = piece / columns, column = piece % columns;
        body(Range{rows * block / row_blocks, rows * (block + 1) / row_blocks},
             Range{panels * column / columns, panels * (column + 1) / columns});
    });
}

// Quantised activations of the call in progress. Kept by the calling thread, so that a step allocates nothing.
struct Int8Scratch {
    std::vector<int8_t> integers;
    std::vector<float> scales;
    std::vector<int32_t> starts;
};

Int8Rows quantise_rows(Engine& e, const Matrix<const float>& x, int64_t groups) {
    thread_local Int8Scratch scratch;
    int8_t* integers = grown(scratch.integers, x.rows * groups * kGroup);
    float* scales = grown(scratch.scales, x.rows * groups);
    int32_t* starts = grown(scratch.starts, x.rows * groups);
    for_rows(e, x.rows, x.columns, [&](int64_t row) {
        e.kernels.quantise_row(x.row(row), x.columns, integers + row * groups * kGroup, scales + row * groups,
                               starts + row * groups);
    });
    return Int8Rows{integers, scales, starts};
}

}  // namespace

PackedLinear pack(Engine& e, const Matrix<const float>& weight, bool int8) {
    PackedLinear packed;
    packed.outputs = weight.rows;
    packed.inputs = weight.columns;
    packed.int8 = int8;
    const int64_t groups = packed.groups();
    allocate(packed);
    e.pool.parallel_for(packed.panels(), [&](int64_t panel) {
        if (int8) {
            pack_int8_panel(weight, panel, groups, packed.bytes.get() + panel * groups * kGroup * kPanel,
                            packed.floats.get() + panel * groups * kPanel);
        } else {
            pack_float_panel(weight, panel, packed.floats.get() + panel * packed.inputs * kPanel);
        }
    });
    return packed;
}

void save(Engine& e, const PackedLinear& w, uint8_t* out) {
    copy_in_pieces(e, w.bytes.get(), w.num_bytes(), out);
    copy_in_pieces(e, w.floats.get(), w.nbytes() - w.num_bytes(), out + w.num_bytes());
}

void restore(Engine& e, const uint8_t* from, PackedLinear& to) {
    allocate(to);
    copy_in_pieces(e, from, to.num_bytes(), to.bytes.get());
    copy_in_pieces(e, from + to.num_bytes(), to.nbytes() - to.num_bytes(), to.floats.get());
}

void linear(Engine& e, const Matrix<const float>& x, const PackedLinear& w, const Matrix<float>& out, bool add) {
    if (x.rows == 0) return;
    const OutRows to{out.values, out.stride, add};
    if (w.int8) {
        const Int8Rows rows = quantise_rows(e, x, w.groups());
        const Int8Weight weight{w.bytes.get(), w.floats.get(), w.outputs, w.groups()};
        for_tiles(e, x.rows, w.panels(), w.inputs,
                  [&](Range r, Range p) { e.kernels.linear_int8(weight, rows, to, r, p); });
    } else {
        const FloatRows rows{x.values, x.stride};
        const FloatWeight weight{w.floats.get(), w.outputs, w.inputs};
        for_tiles(e, x.rows, w.panels(), w.inputs,
                  [&](Range r, Range p) { e.kernels.linear_float(weight, rows, to, r, p); });
    }
}

void rms_norm(Engine& e, const Matrix<const float>& x, const float* weight, float eps, const Matrix<float>& out) {
    for_rows(e, x.rows, x.columns,
             [&](int64_t row) { e.kernels.rms_norm_row(x.row(row), weight, x.columns, eps, out.row(row)); });
}

void rotary_write(Engine& e, const Matrix<float>& qkv, const int32_t* positions, const float* cos, const float* sin,
                  int64_t half, int64_t heads, const int64_t* slots, const Store& store) {
    // Most of the time goes by waiting for the store's lines, one for every dimension of a key or two.
    constexpr int64_t kWait = 8;
    for_rows(e, qkv.rows, qkv.columns * kWait, [&](int64_t row) {
        const int64_t at = positions[row] * half;
        const RotaryRow each{qkv.row(row), cos + at, sin + at, half, heads, slots[row]};
        const int64_t saturated = e.kernels.rotary_row(each, store);
        if (saturated > 0) e.saturated.fetch_add(saturated, std::memory_order_relaxed);
    });
}

void silu_mul(Engine& e, const Matrix<const float>& gate_up, const Matrix<float>& out) {
    for_rows(e, out.rows, out.columns, [&](int64_t row) {
        e.kernels.silu_mul_row(gate_up.row(row), gate_up.row(row) + out.columns, out.columns, out.row(row));
    });
}

void copy_blocks(const Store& s, const int32_t* pairs, int64_t count) {
    const int64_t slots = s.heads * s.block_size, bytes = slots * s.size * slot_bytes(s.type);
    const auto copy = [](void* array, int64_t bytes, const int32_t* pair) {
        std::memmove(static_cast<char*>(array) + pair[1] * bytes, static_cast<char*>(array) + pair[0] * bytes, bytes);
    };
    for (int64_t i = 0; i < count; ++i) {
        for (void* array : {s.keys, s.values}) copy(array, bytes, pairs + 2 * i);
        if (s.type != StoreType::kInt8) continue;
        for (void* array : {s.key_scales, s.value_scales}) copy(array, slots * sizeof(Bfloat16), pairs + 2 * i);
    }
}

}  // namespace pageinn
