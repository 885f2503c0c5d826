#include "cuda/backend/unpacked_gemm.h"

#include <algorithm>

#include "cuda/gemm/gemm_tuner.h"

namespace specdec::cuda {
namespace {

// A piece's tiles are a multiple of this: 256 outputs, as the libraries' widest blocks have.
constexpr int64_t kPieceTiles = 16;

// Whether the GEMM can write to the output itself. Sums of heads are always stored and finished
// from there.
bool is_direct(const FinishParams& finish) {
  if (finish.kind == Finish::kHeads) return true;
  return finish.kind == Finish::kStore && !changes_sums(finish);
}

int bucket_of(const ProjectionParams& params) { return row_bucket(params.rows.num_rows); }

// The GEMM for the `num_tiles` tiles from `first_tile` on.
GemmShape shape_of(const ProjectionParams& params, int first_tile, int num_tiles) {
  const FinishParams& finish = params.finish;
  const int first_output = first_tile * kTileOutputs;
  const int num_outputs = num_tiles * kTileOutputs;
  return {.dtype = params.act_dtype,
          .num_rows = params.rows.num_rows,
          .num_outputs = is_direct(finish)
                             ? std::min(num_outputs, finish.out_features - first_output)
                             : num_outputs,
          .num_inputs = params.num_k_blocks * kBlockInputs,
          .ld = is_direct(finish) ? finish.out_features : num_outputs};
}

}  // namespace

UnpackedGemm::UnpackedGemm(Device& device, Stream& stream, const ProjectionKernels& kernels,
                           int64_t piece_bytes)
    : stream_(stream),
      kernels_(kernels),
      piece_bytes_(piece_bytes),
      weights_(device, stream, "unpacked weights"),
      sums_(device, stream, "sums of unpacked products"),
      library_(device, stream, "workspace of products") {}

bool UnpackedGemm::serves(const ProjectionParams& params) {
  // Every row of sums must begin at a multiple of 16 bytes.
  return params.format == WeightFormat::kAct && params.finish.out_features % 4 == 0;
}

int UnpackedGemm::piece_tiles(const ProjectionParams& params) const {
  const int64_t tile_bytes = int64_t{params.num_k_blocks} * kTileOutputs * kRecordBytes;
  const int64_t sum_bytes = int64_t{bucket_of(params)} * kTileOutputs * 4;
  const int64_t most = std::max(piece_bytes_ / std::max(tile_bytes, sum_bytes), kPieceTiles);
  const int64_t num_pieces = (params.num_tiles + most - 1) / most;
  const int64_t tiles = (params.num_tiles + num_pieces - 1) / num_pieces;
  return static_cast<int>((tiles + kPieceTiles - 1) / kPieceTiles * kPieceTiles);
}

int UnpackedGemm::num_ways(Gemm& gemm, const ProjectionParams& params) {
  const int tiles = std::min(piece_tiles(params), params.num_tiles);
  const int ways = gemm.num_ways(stream_, shape_of(params, 0, tiles));
  const int last_tiles = (params.num_tiles - 1) % tiles + 1;
  const int first_tile = params.num_tiles - last_tiles;
  return std::min(ways, gemm.num_ways(stream_, shape_of(params, first_tile, last_tiles)));
}

UnpackedGemm::Scratch UnpackedGemm::scratch_for(Gemm& gemm, const ProjectionParams& params) {
  const int64_t outputs = int64_t{std::min(piece_tiles(params), params.num_tiles)} * kTileOutputs;
  Scratch scratch = {};
  scratch.weights =
      weights_.get<char>(static_cast<size_t>(outputs * params.num_k_blocks * kRecordBytes));
  if (!is_direct(params.finish)) {
    scratch.sums = sums_.get<float>(static_cast<size_t>(bucket_of(params) * outputs));
  }
  scratch.library = library_.get<char>(gemm.workspace_bytes());
  return scratch;
}

void UnpackedGemm::run(Gemm& gemm, int way, const ProjectionParams& params) {
  const FinishParams& finish = params.finish;
  const int64_t tile_bytes = int64_t{params.num_k_blocks} * kTileOutputs * kRecordBytes;
  const int most_tiles = piece_tiles(params);
  const Scratch scratch = scratch_for(gemm, params);
  float* const direct =
      finish.kind == Finish::kHeads ? finish.heads.sums : static_cast<float*>(finish.out);
  for (int tile = 0; tile < params.num_tiles; tile += most_tiles) {
    const int num_tiles = std::min(most_tiles, params.num_tiles - tile);
    kernels_.unpack(stream_,
                    {.weights = static_cast<const char*>(params.weights) + tile * tile_bytes,
                     .num_tiles = num_tiles,
                     .num_k_blocks = params.num_k_blocks,
                     .out = scratch.weights});
    const GemmShape shape = shape_of(params, tile, num_tiles);
    float* const sums = is_direct(finish) ? direct + int64_t{tile} * kTileOutputs : scratch.sums;
    gemm.run(stream_, way,
             {.shape = shape,
              .weights = scratch.weights,
              .rows = params.records,
              .sums = sums,
              .accumulate = is_direct(finish) && finish.accumulate,
              .workspace = scratch.library});
    if (is_direct(finish)) continue;
    kernels_.finish_sums(stream_, {.act_dtype = params.act_dtype,
                                   .finish = finish,
                                   .num_rows = shape.num_rows,
                                   .sums = sums,
                                   .ld = shape.ld,
                                   .first_tile = tile,
                                   .num_tiles = num_tiles});
  }
  if (finish.kind == Finish::kHeads) {
    kernels_.finish_sums(
        stream_,
        {.act_dtype = params.act_dtype, .finish = finish, .num_rows = params.rows.num_rows});
  }
}

}  // namespace specdec::cuda
