// Loads of tiles of a document's rows.
#pragma once

#include "kernels/tile/shared_tile.cuh"

namespace tilefold::attention {

// Of the one warp that loads. Rows past a packed document belong to others and may hold anything,
// and 0 x NaN must not reach a sum: they become zero.
struct DocumentLoader {
  bool packed;
  std::uint64_t* patch;  // barrier of a tile that the warp still has to clear the tail of
  std::uint32_t patches = 0;

  // `rows`: of the document, from at.row on. `full` counts the tile's bytes and `more` besides.
  template <class Tile>
  __device__ __forceinline__ void load(Tile& to, const CUtensorMap* map, tile::RowsAt at, int rows,
                                       std::uint64_t* full, std::uint32_t more = 0) {
    const bool leader = tile::lane() == 0, tail = packed && rows < Tile::kRows;
    if (leader) {
      if (tail) {
        ptx::mbarrier_arrive_expect(patch, Tile::kBytes);
      } else {
        ptx::mbarrier_arrive_expect(full, Tile::kBytes + more);
      }
      tile::load_tile<Tile::kRows>(to, map, at, tail ? patch : full);
    }
    if (tail) {
      ptx::mbarrier_wait(patch, patches++ & 1);
      tile::clear_rows(to, rows);
      if (leader) ptx::mbarrier_arrive_expect(full, more);
    }
  }
};

}  // namespace tilefold::attention
