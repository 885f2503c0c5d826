// Norms, embedding lookups and rows of features of the CUDA backend.
#include <span>

#include "comm/communicator.h"
#include "core/check.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/packed_linear.h"

namespace specdec::cuda {
namespace {

// An embedding table that is a packed matrix: a lookup reads one output's weights.
class CudaEmbeddingTable final : public EmbeddingTable {
 public:
  explicit CudaEmbeddingTable(const CudaPackedLinear& rows) : rows_(rows) {}
  explicit CudaEmbeddingTable(std::unique_ptr<PackedLinear> rows)
      : owned_(std::move(rows)), rows_(static_cast<const CudaPackedLinear&>(*owned_)) {}

  int64_t num_embeddings() const override { return rows_.out_features(); }
  int64_t dim() const override { return rows_.in_features(); }
  int64_t size_bytes() const override { return owned_ != nullptr ? owned_->size_bytes() : 0; }

  const CudaPackedLinear& rows() const { return rows_; }

 private:
  std::unique_ptr<PackedLinear> owned_;  // null when the rows are borrowed
  const CudaPackedLinear& rows_;
};

void check_streams(const StreamsView& streams) {
  SPECDEC_CHECK_GT(streams.dim, 0);
  SPECDEC_CHECK_GT(streams.num_streams, 0);
  SPECDEC_CHECK_LE(streams.num_streams, kMaxStreams);
}

}  // namespace

std::unique_ptr<EmbeddingTable> CudaBackend::embedding_from(const PackedLinear& weight) {
  const auto& rows = static_cast<const CudaPackedLinear&>(weight);
  SPECDEC_CHECK(!rows.is_gated());
  return std::make_unique<CudaEmbeddingTable>(rows);
}

std::unique_ptr<EmbeddingTable> CudaBackend::make_embedding(const WeightView& table,
                                                            WeightFormat format) {
  return std::make_unique<CudaEmbeddingTable>(
      pack_linear({.parts = {&table, 1}, .format = format}));
}

void CudaBackend::embed(const EmbedArgs& args) {
  attention_work_lists_.begin_pass();  // a model's pass begins with this lookup
  if (args.num_rows == 0) return;
  const CudaPackedLinear& rows = static_cast<const CudaEmbeddingTable&>(*args.table).rows();
  if (rows.share().by_outputs()) return gather_embeddings(args);
  embed_rows(rows, args);
}

void CudaBackend::embed_rows(const CudaPackedLinear& rows, const EmbedArgs& args) {
  const EmbedRowsParams params = {.table = rows.data(),
                                  .num_embeddings = static_cast<int>(rows.num_outputs()),
                                  .dim = static_cast<int>(rows.in_features()),
                                  .token_ids = args.token_ids,
                                  .index_offset = args.index_offset,
                                  .accumulate = args.accumulate,
                                  .scale = args.scale,
                                  .unknown_is_first = args.unknown_is_first,
                                  .out = args.out,
                                  .num_rows = args.num_rows};
  if (rows.format() != WeightFormat::kAct) {
    return kernels_.pointwise.embed_codes(*stream_, params, rows.code_layout());
  }
  kernels_.pointwise.embed_act(*stream_, params, act_dtype_);
}

// Each rank looks up its own outputs and gets NaN for the others, which no rank reads.
void CudaBackend::gather_embeddings(const EmbedArgs& args) {
  SPECDEC_CHECK(!args.accumulate);
  const CudaPackedLinear& rows = static_cast<const CudaEmbeddingTable&>(*args.table).rows();
  const RankShare& share = rows.share();
  const int64_t first = share.first_output(share.ranks()->rank());
  const int dim = static_cast<int>(rows.in_features());
  embed_rows(rows, {.token_ids = args.token_ids,
                    .out = rank_exchange_.own_floats(int64_t{args.num_rows} * dim),
                    .num_rows = args.num_rows,
                    .index_offset = args.index_offset - static_cast<int32_t>(first),
                    .scale = args.scale});
  rank_exchange_.gather_rows(share, args.token_ids, args.index_offset, args.num_rows, dim,
                             args.out);
}

void CudaBackend::norm(const NormArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK(args.out_dtype == DType::kF32 ||
                (args.out_dtype == act_dtype_ && !args.accumulate));
  SPECDEC_CHECK(args.activation == Activation::kIdentity || !args.accumulate);
  SPECDEC_CHECK(args.activation <= Activation::kReluSquared);
  if (args.num_rows == 0) return;
  kernels_.pointwise.norm(*stream_,
                          {.x = args.x,
                           .weight = args.norm.weight,
                           .bias = args.norm.bias,
                           .eps = args.norm.eps,
                           .is_layer = args.norm.kind == NormKind::kLayer,
                           .accumulate = args.accumulate,
                           .scale = args.scale,
                           .activation = args.activation,
                           .out = args.out,
                           .out_dtype = args.out_dtype,
                           .num_rows = args.num_rows,
                           .dim = args.dim,
                           .slot_mapping = nullptr,
                           .out_stride = args.out_stride != 0 ? args.out_stride : args.dim});
}

void CudaBackend::scale_rows(const ScaleRowsArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK((args.gates != nullptr) != (args.factors != nullptr));
  if (args.num_rows == 0) return;
  kernels_.pointwise.scale_rows(
      *stream_, {.rows = args.rows,
                 .act_dtype = act_dtype_,
                 .gates = args.gates,
                 .factors = args.factors,
                 .factor_stride = args.factor_stride != 0 ? args.factor_stride : args.dim,
                 .factors_are_gates = args.factors_are_gates,
                 .num_rows = args.num_rows,
                 .dim = args.dim});
}

void CudaBackend::sparse_gates(const SparseGatesArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  SPECDEC_CHECK(args.activation <= Activation::kReluSquared);
  if (args.num_rows == 0) return;
  kernels_.pointwise.sparse_gates(*stream_, args);
}

// All outputs are computed: an LM head is a small part of what a GPU's step reads.
void CudaBackend::cluster_logits(const ClusterLogitsArgs& args) {
  const int num_outputs = static_cast<int>(args.linear.weight->out_features());
  SPECDEC_CHECK(args.num_kept > 0 && args.num_kept <= args.num_clusters);
  SPECDEC_CHECK_LE(args.num_clusters, kMaxClusters);
  SPECDEC_CHECK_EQ(num_outputs % args.num_clusters, 0);
  SPECDEC_CHECK(!args.linear.accumulate);
  if (args.linear.in.num_rows == 0) return;
  linear(args.linear);
  kernels_.pointwise.keep_clusters(*stream_, {.logits = args.linear.out,
                                              .scores = args.scores,
                                              .num_rows = args.linear.in.num_rows,
                                              .num_clusters = args.num_clusters,
                                              .num_kept = args.num_kept,
                                              .cluster_size = num_outputs / args.num_clusters});
}

void CudaBackend::predict_streams(const PredictStreamsArgs& args) {
  check_streams(args.streams);
  if (args.streams.num_rows == 0) return;
  kernels_.pointwise.predict_streams(*stream_, args);
}

void CudaBackend::correct_streams(const CorrectStreamsArgs& args) {
  check_streams(args.streams);
  SPECDEC_CHECK(args.active >= 0 && args.active < args.streams.num_streams);
  if (args.streams.num_rows == 0) return;
  kernels_.pointwise.correct_streams(*stream_, args);
}

void CudaBackend::match_magnitude(const MatchMagnitudeArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  if (args.num_rows == 0) return;
  kernels_.pointwise.match_magnitude(*stream_, args);
}

void CudaBackend::store_rows(const StoreRowsArgs& args) {
  SPECDEC_CHECK(args.column >= 0 && args.column + args.dim <= args.to.width);
  SPECDEC_CHECK_GT(args.dim, 0);
  if (args.num_rows == 0) return;
  void* out = static_cast<char*>(args.to.rows) + args.column * size_of(act_dtype_);
  if (args.norm == nullptr) {
    return kernels_.pointwise.store_rows(*stream_, {.x = args.x,
                                                    .slot_mapping = args.slot_mapping,
                                                    .out = out,
                                                    .act_dtype = act_dtype_,
                                                    .out_stride = args.to.width,
                                                    .dim = args.dim,
                                                    .num_rows = args.num_rows});
  }
  kernels_.pointwise.norm(*stream_, {.x = args.x,
                                     .weight = args.norm->weight,
                                     .bias = args.norm->bias,
                                     .eps = args.norm->eps,
                                     .is_layer = args.norm->kind == NormKind::kLayer,
                                     .accumulate = false,
                                     .scale = 1.0f,
                                     .activation = Activation::kIdentity,
                                     .out = out,
                                     .out_dtype = act_dtype_,
                                     .num_rows = args.num_rows,
                                     .dim = args.dim,
                                     .slot_mapping = args.slot_mapping,
                                     .out_stride = args.to.width});
}

void CudaBackend::load_rows(const LoadRowsArgs& args) {
  SPECDEC_CHECK(args.column >= 0 && args.column + args.dim <= args.from.width);
  SPECDEC_CHECK_GT(args.dim, 0);
  if (args.num_rows == 0) return;
  const char* from = static_cast<const char*>(args.from.rows) + args.column * size_of(act_dtype_);
  kernels_.pointwise.load_rows(*stream_, {.from = from,
                                          .slots = args.slots,
                                          .act_dtype = act_dtype_,
                                          .from_stride = args.from.width,
                                          .out = args.out,
                                          .accumulate = args.accumulate,
                                          .dim = args.dim,
                                          .num_rows = args.num_rows});
}

void CudaBackend::gather_rows(const GatherRowsArgs& args) {
  SPECDEC_CHECK_GT(args.dim, 0);
  if (args.num_rows > 0) kernels_.pointwise.gather_rows(*stream_, args);
}

}  // namespace specdec::cuda
