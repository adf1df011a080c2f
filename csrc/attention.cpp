// Cuts attention into tiles of query rows and partitions of keys, and merges the partitions from left to right.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops.h"

namespace pageinn {
namespace {

// Up to kTile (query token, head) pairs of one sequence that share a key-value head.
struct Tile {
    int64_t sequence;
    int64_t head;
    int64_t first;  // index of the first pair: token of the chunk * heads per group + head in the group
    int rows;
    int64_t partitions;
    int64_t scratch;  // where its partitions' results go when several threads share it, else -1
};

// A run of a tile's partitions: what one thread does at a time.
struct Piece {
    int64_t tile;
    int64_t begin;
    int64_t end;
};

// Results of one partition: largest and total of each row, then the outputs.
int64_t result_floats(int64_t size) { return kTile * (2 + size); }

Softmax result_at(float* p) { return Softmax{p, p + kTile, p + 2 * kTile}; }

class Job {
public:
    Job(Engine& e, const Attention& a) : e_(e), a_(a), group_(a.heads / a.store.heads) {}

    void run() {
        list_tiles();
        list_pieces();
        e_.pool.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t i) { attend(pieces_[i]); });
        e_.pool.parallel_for(static_cast<int64_t>(shared_.size()), [&](int64_t i) { merge(tiles_[shared_[i]]); });
    }

private:
    int64_t queries(int64_t sequence) const { return a_.query_starts[sequence + 1] - a_.query_starts[sequence]; }

    // How many keys the row of a tile sees, from position 0.
    int64_t visible(const Tile& t, int row) const {
        return a_.context_lens[t.sequence] - queries(t.sequence) + (t.first + row) / group_ + 1;
    }

    // Last tokens first: they see the most keys, and the largest pieces should not come at the end.
    void list_tiles() {
        for (int64_t s = 0; s < a_.sequences; ++s) {
            const int64_t pairs = queries(s) * group_;
            for (int64_t first = (pairs - 1) / kTile * kTile; pairs > 0 && first >= 0; first -= kTile) {
                for (int64_t head = 0; head < a_.store.heads; ++head) {
                    Tile t{s, head, first, static_cast<int>(std::min<int64_t>(kTile, pairs - first)), 0, -1};
                    t.partitions = (visible(t, t.rows - 1) + kPartition - 1) / kPartition;
                    total_ += t.partitions;
                    tiles_.push_back(t);
                }
            }
        }
    }

    // A tile whose partitions would keep one thread busy for too long is shared out; its partitions' results are kept
    // apart and merged afterwards, in the same order and by the same function as otherwise.
    void list_pieces() {
        constexpr int64_t kPiecesPerThread = 8;
        const int threads = e_.pool.threads();
        const int64_t most = threads == 1 ? total_ : std::max<int64_t>(1, total_ / (threads * kPiecesPerThread));
        int64_t floats = 0;
        for (size_t i = 0; i < tiles_.size(); ++i) {
            Tile& t = tiles_[i];
            if (t.partitions <= most) {
                pieces_.push_back({static_cast<int64_t>(i), 0, t.partitions});
                continue;
            }
            t.scratch = floats;
            floats += t.partitions * result_floats(a_.store.size);
            shared_.push_back(i);
            for (int64_t begin = 0; begin < t.partitions; begin += most)
                pieces_.push_back({static_cast<int64_t>(i), begin, std::min(begin + most, t.partitions)});
        }
        thread_local std::vector<float> results;
        if (static_cast<int64_t>(results.size()) < floats) results.resize(floats);
        results_ = results.data();
    }

    // Rows see fewer keys the earlier their token; a row takes no part in partitions beyond its own last key.
    TilePart part(const Tile& t, int64_t partition, const float* q) const {
        TilePart p{&a_.store, a_.tables + t.sequence * a_.table_width, t.head, partition, q, t.rows, {}};
        for (int r = 0; r < t.rows; ++r)
            p.visible[r] = static_cast<int>(std::clamp<int64_t>(visible(t, r) - partition * kPartition, 0, kPartition));
        return p;
    }

    void load_queries(const Tile& t, float* q) const {
        const int64_t size = a_.store.size;
        for (int r = 0; r < t.rows; ++r) {
            const int64_t token = a_.query_starts[t.sequence] + (t.first + r) / group_;
            const float* from = a_.q.row(token) + (t.head * group_ + (t.first + r) % group_) * size;
            for (int64_t d = 0; d < size; ++d) q[r * size + d] = from[d] * a_.scale;
        }
    }

    void attend(const Piece& piece) {
        const Tile& t = tiles_[piece.tile];
        const int64_t size = a_.store.size;
        thread_local std::vector<float> scratch;
        const size_t needed = kTile * size + 2 * result_floats(size);
        if (scratch.size() < needed) scratch.resize(needed);
        float* q = scratch.data();
        const Softmax state = result_at(q + kTile * size);
        const Softmax next = result_at(q + kTile * size + result_floats(size));
        load_queries(t, q);
        for (int64_t p = piece.begin; p < piece.end; ++p) {
            const TilePart each = part(t, p, q);
            if (t.scratch >= 0) {
                e_.kernels.attend(each, result_at(results_ + t.scratch + p * result_floats(size)));
            } else if (p == 0) {
                e_.kernels.attend(each, state);
            } else {
                e_.kernels.attend(each, next);
                merge_rows(each, state, next);
            }
        }
        if (t.scratch < 0) write(t, state);
    }

    void merge(const Tile& t) {
        const int64_t step = result_floats(a_.store.size);
        const Softmax state = result_at(results_ + t.scratch);
        for (int64_t p = 1; p < t.partitions; ++p)
            merge_rows(part(t, p, nullptr), state, result_at(results_ + t.scratch + p * step));
        write(t, state);
    }

    void merge_rows(const TilePart& part, const Softmax& state, const Softmax& next) const {
        for (int r = 0; r < part.rows; ++r)
            if (part.visible[r] > 0) e_.kernels.merge_row(state, next, r, a_.store.size);
    }

    void write(const Tile& t, const Softmax& state) const {
        const int64_t size = a_.store.size;
        for (int r = 0; r < t.rows; ++r) {
            const int64_t token = a_.query_starts[t.sequence] + (t.first + r) / group_;
            const int64_t head = t.head * group_ + (t.first + r) % group_;
            float* to = a_.out + (token * a_.heads + head) * size;
            for (int64_t d = 0; d < size; ++d) to[d] = state.output[r * size + d] / state.total[r];
        }
    }

    Engine& e_;
    const Attention& a_;
    const int64_t group_;
    int64_t total_ = 0;
    std::vector<Tile> tiles_;
    std::vector<Piece> pieces_;
    std::vector<size_t> shared_;
    float* results_ = nullptr;
};

}  // namespace

void attention(Engine& e, const Attention& a) { Job(e, a).run(); }

}  // namespace pageinn
