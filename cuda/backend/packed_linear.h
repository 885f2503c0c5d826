// Weights in the layouts of kernels/tiles.cuh, in device memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "backend/op_args.h"
#include "backend/rank_share.h"
#include "core/buffer.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/quantize.h"

namespace specdec::cuda {

class CudaPackedLinear final : public PackedLinear {
 public:
  struct Shape {
    int64_t out_features = 0;
    int64_t in_features = 0;
    WeightFormat format = WeightFormat::kAct;
    bool is_gated = false;
  };
  // `data` has the blocks of all tiles; `input_order`, which may be empty, an int32 per column.
  CudaPackedLinear(const Shape& shape, Buffer data, const PackArgs& args = {},
                   Buffer input_order = {});

  int64_t out_features() const override {
    return share_.by_outputs() ? share_.num_outputs() : shape_.out_features;
  }
  int64_t num_outputs() const { return shape_.out_features; }  // this rank's
  int64_t in_features() const override { return shape_.in_features; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(data_.size_bytes() + input_order_.size_bytes());
  }
  WeightFormat format() const override { return shape_.format; }

  // The slices of k that this rank's weights have, the number of partial sums per output that they
  // leave, and the other ranks' shares.
  const SliceParams& slices() const { return slices_; }
  int num_planes() const { return slices_.fold_order.num_left; }
  const RankShare& share() const { return share_; }

  bool is_gated() const { return shape_.is_gated; }
  // The input, of all ranks' inputs, that each column has: [in_features] on the device. Null: they
  // are in order.
  const int32_t* input_order() const { return input_order_.as<int32_t>(); }
  int64_t all_inputs() const {  // of all ranks
    return share_.by_inputs() ? share_.inputs().back() : shape_.in_features;
  }
  int num_tiles() const { return num_tiles_of(shape_); }
  int num_k_blocks() const { return num_k_blocks_of(shape_); }
  const void* data() const { return data_.data(); }
  // For formats of codes.
  CodeLayout code_layout() const { return code_layout_of(shape_); }
  // [tiles, 16] factors of the outputs' sums, or null.
  const float* scales() const;

  static int num_tiles_of(const Shape& shape);
  static int num_k_blocks_of(const Shape& shape);
  static CodeLayout code_layout_of(const Shape& shape);
  static int64_t size_bytes_of(const Shape& shape);

 private:
  Shape shape_;
  Buffer data_;
  Buffer input_order_;
  RankShare share_;
  SliceParams slices_;
};

// Copies matrices of a checkpoint to the device, in pieces of bounded size, and packs them there.
class WeightPacker {
 public:
  WeightPacker(Device& device, Stream& stream, const ProjectionKernels& kernels,
               const QuantizeKernels& quantize_kernels, DType act_dtype);

  // Throws InvalidArgument that says what is wrong with the parts.
  std::unique_ptr<CudaPackedLinear> pack(const PackArgs& args);

 private:
  // Memory of a piece in transit. There are two: the host fills one while the device reads the
  // other.
  struct StagingBuffer {
    Buffer pinned;
    Buffer device;
    std::unique_ptr<Event> packed;
    bool in_flight = false;
  };

  Buffer pack_parts(const PackArgs& args, const CudaPackedLinear::Shape& shape);
  // The order of this rank's columns; empty: they are in order.
  Buffer copy_input_order(const PackArgs& args);
  // Copies the blocks of a rank's inputs, a run of slices, from a packed matrix with all inputs.
  Buffer cut(const Buffer& whole, const CudaPackedLinear::Shape& shape, const KSlices& slices,
             const CudaPackedLinear::Shape& own);
  // Packs one part's rows; its first row is output `first_output`.
  void pack_part(const WeightView& part, int64_t first_output, const CudaPackedLinear::Shape& shape,
                 void* packed);
  // The same for formats of integers.
  void pack_codes(const WeightView& part, int64_t first_output,
                  const CudaPackedLinear::Shape& shape, void* packed);
  // The same for formats of 8-bit floats.
  void pack_fp8(const WeightView& part, int64_t first_output, const CudaPackedLinear::Shape& shape,
                void* packed);
  // Makes rows of random weights in the staging memory. Returns false if the part has stored rows
  // to copy.
  bool make_rows(const WeightView& part, int64_t begin, int64_t count, StagingBuffer& staging);
  StagingBuffer& next_staging_buffer(size_t size_bytes);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  const QuantizeKernels& quantize_kernels_;
  DType act_dtype_;
  std::array<StagingBuffer, 2> staging_buffers_;
  int current_ = 0;
};

}  // namespace specdec::cuda
