// Attention's vectors where eight lanes are the widest: see kernels_attention.h. Included after F8 and its functions.

typedef F8 Wide;
typedef uint32_t WideBits __attribute__((vector_size(32)));
constexpr int kWide = kLanes;

// How many wide vectors of keys or dimensions R rows take at a time: enough sums to keep the multipliers busy, and few
// enough for sixteen registers.
constexpr int width_for(int rows) { return rows == 1 ? 8 : rows == 2 ? 4 : rows == 3 ? 3 : 2; }

inline Wide wide_splat(float x) { return splat(x); }
template <class T>
inline Wide wide_load(const T* p) {
    return load(p);
}
// The element at `offset` of each of the runs' keys.
template <class T>
inline Wide wide_keys(const T* const* runs, int64_t offset) {
    return load(runs[0] + offset);
}
// Adds each run of a wide vector to eight sums.
inline F8 add_runs(F8 sums, Wide x) { return sums + x; }
