// What an instruction set provides: the innermost functions, each for a few rows, without threads or checks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pageinn {

constexpr int kPanel = 16;       // outputs side by side in a packed weight
constexpr int kGroup = 64;       // inputs that share a scale
constexpr int kPartition = 256;  // keys that are attended together
constexpr int kTile = 6;         // query rows that read a key together
constexpr int kLanes = 8;        // keys whose scores are computed together
constexpr int kWeightOffset = 64;
constexpr int kWidenedBlock = 64;  // keys side by side where a partition of eight bits is widened

// [panels][groups][kGroup / 4][kPanel][4] bytes of weight + kWeightOffset; scales [panels][groups][kPanel].
struct Int8Weight {
    const uint8_t* bytes;
    const float* scales;
    int64_t outputs;
    int64_t groups;
};

// Quantised rows: integers [rows][groups * kGroup], scales [rows][groups], and what each group's sums start from,
// -kWeightOffset times the sum of its integers.
struct Int8Rows {
    const int8_t* integers;
    const float* scales;
    const int32_t* starts;
};

// [panels][inputs][kPanel].
struct FloatWeight {
    const float* values;
    int64_t outputs;
    int64_t inputs;
};

struct FloatRows {
    const float* values;
    int64_t stride;
};

struct OutRows {
    float* values;
    int64_t stride;
    bool add;
};

struct Range {
    int64_t begin;
    int64_t end;
};

// Elements of a store. They are read as the float32 they stand for; writing rounds to nearest even.
struct Bfloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};
// Saturating casts of the OCP 8-bit floating point specification. An e4m3 is read as 1 / kE4m3Unit of what it stands
// for: its bits, shifted, are then those of a float16, and whoever uses the result folds the power of two in elsewhere.
struct Fp8E4m3 {
    uint8_t bits;
};
struct Fp8E5m2 {
    uint8_t bits;
};
constexpr float kE4m3Unit = 256.0f;
// Integers in [-127, 127], read as such.
struct Int8 {
    int8_t value;
};
// Two numbers side by side that are summed one after the other: products of such pairs are one instruction where the
// processor has it.
struct Pair {
    Bfloat16 even;
    Bfloat16 odd;
};
enum class StoreType { kFloat32, kBfloat16, kBfloat16Pairs, kFloat16, kFp8E4m3, kFp8E5m2, kInt8 };

// How many dimensions of a key, or tokens of a value, lie side by side.
static inline int64_t side_by_side(StoreType type) { return type == StoreType::kBfloat16Pairs ? 2 : 1; }

// Whether what multiplies a store's numbers is rounded to bfloat16, and of two dimensions or tokens that follow each
// other the second is added first: what an instruction does that multiplies pairs, where there is one. The numbers
// themselves are bfloat16's then, or eight bits, which are exact in it.
static inline bool rounds(StoreType type) { return type != StoreType::kFloat32 && type != StoreType::kFloat16; }

// Bytes of one element of a store. Static: files for other instruction sets must not share its code.
static inline int64_t slot_bytes(StoreType type) {
    switch (type) {
        case StoreType::kFloat32: return 4;
        case StoreType::kBfloat16: case StoreType::kBfloat16Pairs: case StoreType::kFloat16: return 2;
        case StoreType::kFp8E4m3: case StoreType::kFp8E5m2: case StoreType::kInt8: return 1;
    }
    return 0;
}

// One layer's store: keys [blocks, heads, size, block_size], values [blocks, heads, block_size, size]; in pairs, keys
// [blocks, heads, size / 2, block_size] of two dimensions and values [blocks, heads, block_size / 2, size] of two
// tokens. Scales of fp8 are float [heads], of int8 Bfloat16 [blocks, heads, block_size]; others have none.
struct Store {
    void* keys;
    void* values;
    void* key_scales;
    void* value_scales;
    StoreType type;
    int64_t blocks;
    int64_t heads;
    int64_t size;
    int64_t block_size;
};

// Where one head's keys and values of a partition lie, eight at a time. The last in use is repeated kSpare times, for
// rows that take several at a time.
struct KeyRuns {
    static constexpr int kRuns = kPartition / kLanes;
    static constexpr int kSpare = 8;
    const void* keys[kRuns + kSpare];    // each [size] rows of eight, block_size apart, or [size / 2] of eight pairs
    const void* values[kRuns + kSpare];  // each [eight][size], or [four][size] pairs
    const Bfloat16* key_scales[kRuns + kSpare];  // of int8, each [eight]
    const Bfloat16* value_scales[kRuns + kSpare];
    const void* later[kRuns + kSpare];   // what is read kSpare runs after these keys: keys or, after those, values
};

// What a tile of rows needs for one partition of keys. visible: how many of the partition's keys each row sees.
struct TilePart {
    const Store* store;
    const KeyRuns* runs;
    const float* q;              // [rows][size], already scaled and, where that is due, rounded to bfloat16
    const Bfloat16* q_bfloat16;  // the same numbers, if they are rounded
    int rows;
    int visible[kTile];
};

// Per row of a tile: largest score, sum of exponentials, and output [size] that the sum still has to divide.
struct Softmax {
    float* largest;
    float* total;
    float* output;
};

// One row of [queries, keys, values] and where it goes. slot < 0 writes nothing.
struct RotaryRow {
    float* qkv;
    const float* cos;
    const float* sin;
    int64_t half;
    int64_t heads;
    int64_t slot;
};

struct Peak {
    float value;
    int32_t index;
    bool has_nan;
};

struct Kernels {
    const char* isa;
    bool pairs;  // whether bfloat16 stores in pairs are attended
    void (*quantise_row)(const float* x, int64_t inputs, int8_t* integers, float* scales, int32_t* starts);
    void (*linear_int8)(const Int8Weight&, const Int8Rows&, const OutRows&, Range rows, Range panels);
    void (*linear_float)(const FloatWeight&, const FloatRows&, const OutRows&, Range rows, Range panels);
    void (*rms_norm_row)(const float* x, const float* weight, int64_t size, float eps, float* out);
    // Returns how many elements the store could not hold and took as its largest number.
    int64_t (*rotary_row)(const RotaryRow&, const Store&);
    // Rounds what multiplies a store that `rounds`, in place and to bfloat16 numbers as such.
    void (*round_row)(float* x, int64_t size, Bfloat16* rounded);
    void (*attend)(const TilePart&, const Softmax& out);
    // Widens the first `count` runs of an e4m3 store to bfloat16, or of any eight-bit store to bfloat16 in pairs where
    // those are attended, and lets the runs point there. room: for a partition's keys and values, two bytes a number.
    void (*widen)(const Store&, int64_t count, KeyRuns& runs, void* room);
    // Merges `part` into `state`, which stands for everything left of it.
    void (*merge_row)(const Softmax& state, const Softmax& part, int row, int64_t size);
    void (*silu_mul_row)(const float* gate, const float* up, int64_t size, float* out);
    Peak (*peak)(const float* values, int64_t size);
    // out[i] = exp(values[i] / temperature - largest / temperature) in float64.
    void (*exponentials)(const float* values, int64_t size, double temperature, float largest, double* out);
};

const Kernels& portable_kernels();
#ifdef PAGEINN_X86
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
#endif

}  // namespace pageinn
