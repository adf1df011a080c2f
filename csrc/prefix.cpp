#include "prefix.h"

#include <algorithm>

#include "kernels.h"

namespace pageinn {
namespace {

class Finder {
public:
    explicit Finder(const Tables& tables) : tables_(tables) {
        const int64_t sequences = static_cast<int64_t>(tables.whole.size());
        found_.own.resize(sequences);
        for (int64_t s = 0; s < sequences; ++s)
            if (tables.whole[s] > 0) found_.order.push_back(s);
    }

    SharedPrefixes find() {
        split(0, static_cast<int64_t>(found_.order.size()), 0);
        return std::move(found_);
    }

private:
    // Compares the blocks of a partition; a sequence that has no such whole partition comes last.
    int compare(int64_t a, int64_t b, int64_t partition) const {
        const bool has_a = tables_.whole[a] > partition, has_b = tables_.whole[b] > partition;
        if (!has_a || !has_b) return has_b - has_a;
        const int64_t begin = partition * kPartition / tables_.block_size;
        const int64_t end = ((partition + 1) * kPartition + tables_.block_size - 1) / tables_.block_size;
        const int32_t* left = tables_.blocks + a * tables_.width;
        const int32_t* right = tables_.blocks + b * tables_.width;
        for (int64_t i = begin; i < end; ++i)
            if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
        return 0;
    }

    bool agree(int64_t first, int64_t count, int64_t partition) const {
        const int64_t head = found_.order[first];
        if (tables_.whole[head] <= partition) return false;
        for (int64_t i = first + 1; i < first + count; ++i)
            if (compare(head, found_.order[i], partition) != 0) return false;
        return true;
    }

    // Follows sequences that agree up to `partition` as far as they all do, and then each bunch that still does.
    void split(int64_t first, int64_t count, int64_t partition) {
        if (count < 2) return;
        const int64_t begin = partition;
        while (agree(first, count, partition)) ++partition;
        if (partition > begin) found_.runs.push_back({first, count, begin, partition});
        const auto at = found_.order.begin() + first;
        for (auto s = at; s != at + count; ++s) found_.own[*s] = partition;
        std::sort(at, at + count, [&](int64_t a, int64_t b) { return compare(a, b, partition) < 0; });
        for (int64_t i = 0, next; i < count && tables_.whole[at[i]] > partition; i = next) {
            for (next = i + 1; next < count && compare(at[i], at[next], partition) == 0;) ++next;
            split(first + i, next - i, partition);
        }
    }

    const Tables& tables_;
    SharedPrefixes found_;
};

}  // namespace

SharedPrefixes find_shared_prefixes(const Tables& tables) { return Finder(tables).find(); }

}  // namespace pageinn
