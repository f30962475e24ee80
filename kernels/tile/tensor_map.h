// What the copy engine needs to know of a tensor, made on the host from a strided view.
#pragma once

#include <cuda.h>

#include "base/tensor.h"

namespace tilefold::tile {

// Whether the copy engine can move this [batch, seq, heads, d] tensor: last stride 1, data and the
// other strides multiples of 16 bytes, d a multiple of 8, strides below 2^40 bytes. Otherwise a
// sentence says why not.
struct CopyCheck {
  bool ok;
  const char* why;
};
CopyCheck can_copy(const ConstTensor& tensor);

// Boxes of box_rows x 64 columns of one head, swizzled as SharedTile; columns from d on and rows
// from seq on read as zero and are not written. REQUIRES: can_copy, f16 or bf16, box_rows <= 256.
CUtensorMap make_tensor_map(const ConstTensor& tensor, int box_rows);

}  // namespace tilefold::tile
