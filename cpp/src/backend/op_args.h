// Arguments of the backend's operations: plain structs, shapes in comments. Matrices are row-major.
// "act" is the activation dtype of the model: float32, or bfloat16 for bfloat16 models. The
// residual stream and everything pointwise is float32 in both.
//
// Every operation is row-invariant: a row of the result depends on that row of the input and on the
// weights, bit for bit, never on how many rows there are or where in the batch it stands.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/recurrent_args.h"
#include "core/dtype.h"
#include "core/k_slices.h"
#include "core/random_weights.h"
#include "core/tensor_view.h"
#include "specdec/logprobs_mode.h"
#include "specdec/request_output.h"

namespace specdec {

class Communicator;  // comm/communicator.h
struct SharedHeads;  // backend/shared_heads.h

// A matrix of a checkpoint, borrowed. Integer weights are scale * code (+ min), with a scale (and a
// min) per group_size inputs of a row; 8-bit floats are scale * value, with a scale per block of
// weights.
struct WeightView {
  // Floating point [rows, in_features], or codes: int8 or 8-bit floats [rows, in_features], or 4
  // bits in uint8 [rows, in_features / 2], input 2i in the low half of byte i. 4-bit codes mean
  // scale * (code - 8), with mins scale * code + min, with zeros scale * (code - zero), with a
  // table scale * table[code]; there is at most one of the three.
  TensorView values;
  const uint16_t* scales = nullptr;  // [rows, in_features / group_size] float16, null: not integers
  const uint16_t* mins = nullptr;    // likewise, or null
  const uint8_t* zeros = nullptr;    // [rows, in_features / group_size], 0 to 15, or null
  const int8_t* table = nullptr;     // [16], or null
  int group_size = 0;                // inputs, 16 or a multiple of 32; 0 for floating point
  // Scales of 8-bit floats: [ceil(rows / block_rows), ceil(in_features / block_cols)], finite. Or,
  // in place of `scales`, of int8 codes: float32 [rows], with block_rows 1 and block_cols
  // in_features.
  const float* block_scales = nullptr;
  int64_t block_rows = 0;
  int64_t block_cols = 0;
  // Of integers in groups: column j has the weights of input input_order[j], [in_features],
  // distinct; null: of input j. Groups are of columns.
  const int32_t* input_order = nullptr;
  // For a floating-point matrix that is generated where it is needed: values.data is null. Only for
  // backends with makes_random_weights().
  RandomSource random = {};

  bool has_row_scales() const { return block_scales != nullptr && values.dtype == DType::kI8; }
  bool is_integer() const { return scales != nullptr || has_row_scales(); }
  bool is_fp8() const { return block_scales != nullptr && values.dtype == DType::kF8E4M3; }
  bool is_quantized() const { return is_integer() || is_fp8(); }
  int bits() const {
    return !is_integer() ? 0 : values.dtype == DType::kI8 ? 8 : 4;
  }  // of integers
  int64_t rows() const { return values.shape[0]; }
  int64_t in_features() const { return values.shape[1] * (bits() == 4 ? 2 : 1); }
};

// How a packed matrix is stored. On the CPU, projections with integer weights also round their
// inputs to 8 bits, with a scale per group of kQuantGroup (kInt8Grouped16: of kShortGroup). A GPU
// uses the inputs unrounded, as with 8-bit floats.
enum class WeightFormat : uint8_t {
  kAct,             // the backend's act dtype
  kInt8,            // one scale an output
  kInt8Grouped,     // a scale for every kQuantGroup inputs of an output
  kInt8GroupedMin,  // and a min
  kInt4Grouped,
  kInt4GroupedMin,
  kInt4GroupedZero,  // a scale and a zero of 4 bits for every kQuantGroup inputs of an output
  kInt4Table,        // a scale, and one table of 16 int8 values for all codes of the matrix
  kInt8Grouped16,    // a scale for every 16 inputs of an output
  kFp8,              // 8-bit floats (e4m3), one scale an output
  kFp8Grouped,       // and a factor of that scale for every kQuantGroup inputs
};
template <>
inline constexpr auto kEnumNames<WeightFormat> =
    std::to_array<EnumName<WeightFormat>>({{WeightFormat::kAct, "act"},
                                           {WeightFormat::kInt8, "int8"},
                                           {WeightFormat::kInt8Grouped, "int8_grouped"},
                                           {WeightFormat::kInt8GroupedMin, "int8_grouped_min"},
                                           {WeightFormat::kInt4Grouped, "int4_grouped"},
                                           {WeightFormat::kInt4GroupedMin, "int4_grouped_min"},
                                           {WeightFormat::kInt4GroupedZero, "int4_grouped_zero"},
                                           {WeightFormat::kInt4Table, "int4_table"},
                                           {WeightFormat::kInt8Grouped16, "int8_grouped16"},
                                           {WeightFormat::kFp8, "fp8"},
                                           {WeightFormat::kFp8Grouped, "fp8_grouped"}});
inline constexpr int kQuantGroup = 32;
inline constexpr int kShortGroup = 16;  // of WeightFormat::kInt8Grouped16
inline constexpr int kTableSize = 16;   // of WeightView::table

// Whether 8-bit floats `part` can be held as they are in `format`.
bool keeps_fp8(WeightFormat format, const WeightView& part);
// out [in_features] = row `row` of a quantised matrix, in order of inputs.
void dequantize_row(const WeightView& part, int64_t row, float* out);

struct PackArgs {
  std::span<const WeightView> parts;  // one after another: [out_features, in_features]
  // Parts already in a grouped format (of kQuantGroup), or of 8-bit floats, keep their codes where
  // `format` can hold them; everything else is converted to float32 first. With an input_order, all
  // parts have the same and keep their codes: the weight then reorders the rows that it multiplies.
  WeightFormat format = WeightFormat::kAct;
  // Two parts of equal shape, gate and up, laid side by side for ActivatedLinearArgs::gated.
  bool gated = false;
  // The order of the sums over k: slices that are folded pairwise (core/k_slices.h). The weight
  // keeps the inputs of k_slices->run, while the parts cover the whole matrix. Null: all inputs,
  // one sum in order of k. Not supported for gated weights.
  const KSlices* k_slices = nullptr;

  // Shared with the other ranks of a group, which then all call linear() on their shares with as
  // many rows, and all get the whole result. Null: the weight is used alone.
  Communicator* ranks = nullptr;
  // By rank, the runs of slices that they hold, in rising order and without gaps; with k_slices.
  std::span<const SliceRun> rank_runs = {};
  // By rank, where its outputs begin, then the number of all outputs: [size + 1]. `parts` are the
  // rank's own outputs, out_features() is the number of all. Either this or rank_runs.
  std::span<const int64_t> rank_outputs = {};
};

// A weight matrix [out_features, in_features] in the layout its backend chose.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;  // of the inputs it keeps
  virtual int64_t size_bytes() const = 0;
  virtual WeightFormat format() const = 0;
};

// A table [num_embeddings, dim] whose rows are looked up; may share storage with a tied head.
class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;
  virtual int64_t num_embeddings() const = 0;
  virtual int64_t dim() const = 0;
  virtual int64_t size_bytes() const = 0;  // 0 when it shares a PackedLinear's storage
};

// One step's rows: the packed batch of token trees. A request contributes a root or a prompt chunk
// (a chain), or a root and its draft nodes (a tree), parents before children.
//   KV slot of a row = base_lens[request] + index of the row in its request
//   position of a row = base_lens[request] + its depth in the tree (a chain's depth is its index)
struct BatchView {
  int num_requests = 0;
  int num_rows = 0;
  const int32_t* token_ids = nullptr;     // [num_rows]
  const int32_t* positions = nullptr;     // [num_rows]
  const int64_t* slot_mapping = nullptr;  // [num_rows] block * block_size + offset of the row's KV
  const int32_t* cu_rows = nullptr;       // [num_requests + 1] first row of each request
  const int32_t* base_lens = nullptr;     // [num_requests] committed tokens already in the cache
  const int32_t* block_tables = nullptr;  // [num_requests, max_blocks_per_request]
  int max_blocks_per_request = 0;
  // Bit j of row i's mask: slot base_len + j of the same request holds i itself or an ancestor of
  // i. Only read for requests with is_tree; the others are chains (row i sees rows 0..i).
  const uint8_t* is_tree = nullptr;         // [num_requests]
  const uint64_t* ancestor_mask = nullptr;  // [num_rows, mask_words]; may be null without trees
  // A tree that grows over several passes: slots past base_len its masks may name, more than the
  // rows given now, whose slots and positions are then what slot_mapping, positions and the masks
  // say. At most 64 * mask_words. Null: as many as the request has rows.
  const int32_t* num_tree_slots = nullptr;  // [num_requests]
  int mask_words = 1;
  // For rows of a draft head, else null: the slot of the features that the row reads, which is the
  // slot of the previous token or of the parent.
  const int64_t* feature_slots = nullptr;  // [num_rows]
  // The slot to which the row's own state goes, for its children to read; -1: none.
  const int64_t* state_slots = nullptr;  // [num_rows]
  RecurrentRows recurrent = {};          // for models with recurrent layers
  // The arrays are at the same addresses for every staged batch of this shape, so work on them may
  // be recorded.
  bool is_recordable = false;
};

// One layer of the paged KV cache. The layout inside is the backend's.
struct PagedKvView {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::kF32;  // the model's act dtype, or int8
  int num_blocks = 0;
  int block_size = 0;  // tokens
  int num_kv_heads = 0;
  int head_dim = 0;
};

// Rows of features under the same block ids as the KV cache: the states of a slot's token, for a
// drafter. Row-major on every device, so that a projection can read row `slot` through
// ProjectionInput::row_ids.
struct PagedRowsView {
  void* rows = nullptr;  // [num_slots, width] act
  int64_t num_slots = 0;
  int width = 0;
};

struct EmbedArgs {
  const EmbeddingTable* table = nullptr;
  const int32_t* token_ids = nullptr;  // [num_rows]
  float* out = nullptr;                // [num_rows, dim]
  int num_rows = 0;
  int32_t index_offset = 0;       // added to every id (OPT's positions start at 2)
  bool accumulate = false;        // out += row instead of out = row
  float scale = 1.0f;             // every row is multiplied by it
  bool unknown_is_first = false;  // ids past the table read its first row; else they are not given
};

enum class NormKind : uint8_t { kRms, kLayer };

struct NormParams {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim], or null: of either kind
  float eps = 1e-5f;
};

// kReluSquared: max(x, 0)^2. The last two have constants. kXielu: beta x + (x > 0 ? positive x^2 :
// negative (expm1(min(x, eps)) - x)). kClampedSwiglu is of gated MLPs alone, where a gate g and an
// up u become min(g, limit) sigmoid(alpha min(g, limit)) (1 + clamp(u, -limit, limit)).
enum class Activation : uint8_t {
  kSilu,
  kRelu,
  kGelu,
  kGeluTanh,
  kIdentity,
  kReluSquared,
  kXielu,
  kClampedSwiglu
};
struct ActivationConstants {
  float positive = 0.0f, negative = 0.0f, beta = 0.0f, eps = 0.0f;  // of kXielu
  float alpha = 0.0f, limit = 0.0f;                                 // of kClampedSwiglu
};

struct NormArgs {
  NormParams norm;
  const float* x = nullptr;  // [num_rows, dim]
  void* out = nullptr;       // [num_rows, dim]; if float32, may be x
  DType out_dtype = DType::kF32;
  int num_rows = 0;
  int dim = 0;
  bool accumulate = false;  // of a float32 out: out = scale * (out + norm(x))
  float scale = 1.0f;       // with `accumulate` only
  int out_stride = 0;       // elements from one row of out to the next; 0: dim
  // Applied to the normalised row, before it is rounded. Not with `accumulate`.
  Activation activation = Activation::kIdentity;
};

// The rows a projection reads: act, or float32, which may be normalised on the way in.
struct ProjectionInput {
  const void* x = nullptr;           // [*, in_features]
  DType dtype = DType::kF32;         // of x: float32 or act
  const int32_t* row_ids = nullptr;  // [num_rows] rows of x; null: the first num_rows
  const NormParams* norm = nullptr;  // of float32 rows; null: none
  int num_rows = 0;
};

// out = cap(scale * (in W^T (+ bias))) (+ out), in float32.
struct LinearArgs {
  const PackedLinear* weight = nullptr;
  ProjectionInput in;
  const float* bias = nullptr;  // [out_features], or null
  float* out = nullptr;         // [num_rows, out_features]
  bool accumulate = false;      // residual: add to what out holds
  float scale = 1.0f;
  float soft_cap = 0.0f;  // cap(x) = soft_cap * tanh(x / soft_cap); 0: cap(x) = x
};

// Computes each row's likeliest token instead of the outputs of a projection: the token of the
// greatest output, the lowest such token between equals. NaN counts as -inf and values above 1e30
// as 1e30, as in samplers. The result is 0 where all outputs are -inf.
struct BestTokensArgs {
  LinearArgs linear;                   // without `out`, and nothing is accumulated
  const int32_t* token_ids = nullptr;  // [out_features] of the outputs; null: outputs are tokens
  int32_t* tokens = nullptr;           // out [num_rows]
};

inline constexpr int kMaxClusters = 8192;

// Outputs of a projection that are in num_clusters equal runs. Of each row the outputs of the
// num_kept runs with the greatest scores (ties: lower index) are computed as by linear(), and the
// others are -inf. NaN counts as -inf.
struct ClusterLogitsArgs {
  LinearArgs linear;              // nothing is accumulated
  const float* scores = nullptr;  // [num_rows, num_clusters]
  int num_clusters = 0;           // at most kMaxClusters
  int num_kept = 0;
};

// The first projection of an MLP. gated: out = activation(in G^T + b) * (in U^T + c), with a weight
// that was packed gated; else out = activation(in W^T + b).
struct ActivatedLinearArgs {
  const PackedLinear* weight = nullptr;
  ProjectionInput in;
  const float* bias = nullptr;  // [out_features], b then c; or null
  Activation activation = Activation::kSilu;
  ActivationConstants constants = {};
  bool gated = true;
  void* out = nullptr;  // [num_rows, gated ? out_features / 2 : out_features] act
};

// rows[i, j] *= sigmoid(gates[i]), factors[i, j] or sigmoid(factors[i, j]), in place: in float32,
// rounded to act.
struct ScaleRowsArgs {
  void* rows = nullptr;            // [num_rows, dim] act
  const float* gates = nullptr;    // [num_rows]; either these or the factors
  const float* factors = nullptr;  // [num_rows, dim]
  int64_t factor_stride = 0;       // elements from one row of factors to the next; 0: dim
  bool factors_are_gates = false;  // the sigmoid of each is the factor
  int num_rows = 0;
  int dim = 0;
};

// gates[i, j] = activation(max(0, gates[i, j] - m - deviations * s)), in place in float32, where m
// is the mean and s the standard deviation of gates[i, :], over dim elements. This is the Gaussian
// top-k of Gemma 3n: for normally distributed gates, `deviations` says what part of them stays.
struct SparseGatesArgs {
  float* gates = nullptr;  // [num_rows, dim]
  float deviations = 0.0f;
  Activation activation = Activation::kGeluTanh;
  int num_rows = 0;
  int dim = 0;
};

// Residual streams side by side, of which layers read one (AltUp, in Gemma 3n).
struct StreamsView {
  float* data = nullptr;  // stream k begins at k * stride: [num_rows, dim]
  int64_t stride = 0;     // elements
  int num_streams = 0;    // at most kMaxStreams
  int num_rows = 0;
  int dim = 0;
};
inline constexpr int kMaxStreams = 8;

// Every stream becomes itself plus a mix of all, where a row mixes with its own weights:
// streams[k] += sum over j of (coefficients[k * num_streams + j, :] . modalities[row, :]) *
// streams[j], of the streams as they were.
struct PredictStreamsArgs {
  StreamsView streams;
  const float* modalities = nullptr;    // [num_rows, num_streams]
  const float* coefficients = nullptr;  // [num_streams^2, num_streams]
};

// Every stream moves by what the layer changed in the active one: streams[k] += (activated -
// streams[active]) * (1 + coefficients[k, :] . modalities[row, :]), of the streams as they were.
struct CorrectStreamsArgs {
  StreamsView streams;
  int active = 0;
  const float* activated = nullptr;     // [num_rows, dim]
  const float* modalities = nullptr;    // [num_rows, num_streams]
  const float* coefficients = nullptr;  // [num_streams, num_streams]
};

// y[i] = x[i] * rms(reference[i]) / sqrt(max(1e-5, mean of the squares of x[i])), where rms is the
// root of the mean of the squares, or x[i] without a reference; out[i] = y[i], or scale * (out[i] +
// y[i]).
struct MatchMagnitudeArgs {
  const float* x = nullptr;          // [num_rows, dim]
  const float* reference = nullptr;  // [num_rows, dim], or null
  float* out = nullptr;              // [num_rows, dim]; may be x
  bool accumulate = false;
  float scale = 1.0f;  // with `accumulate` only
  int num_rows = 0;
  int dim = 0;
};

// The projection to q, k and v: normalises q, k and v where the family does, q and k each head by
// itself or all heads together; rotates them (half-split RoPE, the Hugging Face convention);
// multiplies q by its position's factor; writes k and v to the cache.
struct QkvArgs {
  const PackedLinear* weight = nullptr;  // [(num_heads + 2 * num_kv_heads) * head_dim, in_features]
  ProjectionInput in;                    // the batch's rows
  const float* bias = nullptr;           // [out_features], or null
  // RMS weights [head_dim], or null. With norm_all_heads [num_heads * head_dim] and
  // [num_kv_heads * head_dim], both given: one norm over the whole of q, one over the whole of k.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;  // [head_dim], of each head by itself; or null
  bool norm_all_heads = false;
  // With norm_all_heads, where these are only some of the heads: which ranks have the others. The
  // weights are those of these heads, and all ranks make the call with the same number of rows.
  const SharedHeads* shared_heads = nullptr;
  bool norm_after_rope = false;  // each head by itself, once it is rotated
  float norm_eps = 1e-6f;
  const float* rope_cos = nullptr;  // [max_positions, rotary_dim / 2], or null for none
  const float* rope_sin = nullptr;
  int rotary_dim = 0;
  const float* query_scales = nullptr;  // [max_positions] factors of q, or null
  int num_heads = 0;
  const BatchView* batch = nullptr;
  // Without KV heads: the weight gives q alone, and nothing is written to the cache.
  PagedKvView kv;
  void* q = nullptr;  // out [num_rows, num_heads * head_dim] act
};

// Softmax attention over the paged cache. A row sees the committed slots and, among its own
// request's rows, itself and its ancestors; with a window, only the last `sliding_window` of those
// positions. The result is computed in order of position, so a tree row equals the same path run as
// a chain.
struct TreeAttentionArgs {
  const void* q = nullptr;  // [num_rows, num_heads * head_dim] act
  const BatchView* batch = nullptr;
  PagedKvView kv;
  int num_heads = 0;
  float scale = 1.0f;
  float soft_cap = 0.0f;   // scores become soft_cap * tanh(score / soft_cap) once scaled; 0: do not
  int sliding_window = 0;  // 0: none
  // [num_heads] of each head a score beside those of the positions, which takes its share of the
  // softmax and has no value; neither scaled nor capped. Null: none.
  const float* sinks = nullptr;
  // Slots before it hold nothing: no row sees them. Every row's own position is at least this.
  int first_position = 0;
  void* out = nullptr;  // [num_rows, num_heads * head_dim] act
};

inline constexpr int kMaxExpertGroups = 32;

// How a row's experts and their weights follow from the router's logits. Chosen are the top_k
// experts (ties: lower index) by score plus selection bias; weights are scores without the bias.
enum class RouterScores : uint8_t { kSoftmax, kSigmoid };  // of all logits of a row
struct Router {
  RouterScores scores = RouterScores::kSoftmax;
  const float* selection_bias = nullptr;  // [num_experts], or null
  // Experts are in num_groups equal runs. Only those of the top_groups best runs may be chosen,
  // which are at least top_k. A run counts as much as the sum of its two best biased scores, or as
  // its only one (ties: lower index). At most kMaxExpertGroups runs.
  int num_groups = 1;
  int top_groups = 1;
  int top_k = 2;
  bool renormalize = true;  // weights are divided by their sum (of sigmoids: plus 1e-20)
  float scale = 1.0f;       // then multiplied by this
  const float* expert_scales = nullptr;  // [num_experts], and by the chosen expert's; or null

  constexpr bool restricts_groups() const { return top_groups < num_groups; }
  // Scores rise with logits, so that the best logits are the best scores.
  constexpr bool chooses_by_logits() const {
    return selection_bias == nullptr && !restricts_groups();
  }
};
// Fails where the rules above are broken.
void check_router(const Router& router, int num_experts);

// Sparse mixture of experts: of each row, the results of its experts times their weights are added
// to out, or to zero, in the order of the experts' rank.
struct MoeArgs {
  const float* router_logits = nullptr;  // [num_rows, num_experts]
  Router router;
  const void* x = nullptr;                       // [num_rows, hidden] act
  std::span<const PackedLinear* const> gate_up;  // [num_experts] of [2 * inner, hidden], gated
  std::span<const PackedLinear* const> down;     // [num_experts] of [hidden, inner]
  const float* gate_up_bias = nullptr;           // [num_experts, 2 * inner], gates first; or null
  const float* down_bias = nullptr;              // [num_experts, hidden], or null
  Activation activation = Activation::kSilu;
  ActivationConstants constants = {};
  float* out = nullptr;    // [num_rows, hidden]
  bool accumulate = true;  // to what out holds; else out is overwritten
  int num_rows = 0;
};

// to.rows[slot_mapping[row], column .. column + dim) = x[row], or norm(x[row]), rounded to act.
// Rows whose slot is -1 are left out.
struct StoreRowsArgs {
  const float* x = nullptr;               // [num_rows, dim]
  const NormParams* norm = nullptr;       // null: none
  const int64_t* slot_mapping = nullptr;  // [num_rows], as of BatchView; null: row i goes to slot i
  PagedRowsView to;
  int column = 0;
  int dim = 0;
  int num_rows = 0;
};

// out[row] (+)= from.rows[slots[row], column .. column + dim), as float32. The way back of
// StoreRowsArgs. Rows whose slot is -1 read zeros.
struct LoadRowsArgs {
  PagedRowsView from;
  const int64_t* slots = nullptr;  // [num_rows]; null: row i reads slot i
  int column = 0;
  int dim = 0;
  float* out = nullptr;     // [num_rows, dim]
  bool accumulate = false;  // out += row instead of out = row
  int num_rows = 0;
};

// out[i] (+)= rows[row_ids[i]], of float32.
struct GatherRowsArgs {
  const float* rows = nullptr;       // [more than any id, dim]
  const int32_t* row_ids = nullptr;  // [num_rows]
  float* out = nullptr;              // [num_rows, dim]
  bool accumulate = false;           // out += row instead of out = row
  int num_rows = 0;
  int dim = 0;
};

// Moves cached tokens after verification: for each pair, the KV of slot `from` is copied to slot
// `to`, for every layer view given, and so are rows of features. Pairs of one request are in rising
// order with to <= from.
struct CopyKvArgs {
  std::span<const PagedKvView> layers;
  PagedRowsView features = {};                         // width 0: none
  std::span<const std::pair<int64_t, int64_t>> slots;  // (from, to)
};

// How often tokens stand in a request's prompt and output, for the penalties.
struct TokenCount {
  int32_t token_id = 0;
  int32_t output_count = 0;  // 0: only in the prompt
};

// Changes the logits of one row, [vocab_size], on the host: after masks and bias, before penalties.
class RowProcessor {
 public:
  virtual ~RowProcessor() = default;
  virtual void apply(std::span<float> logits) = 0;
};

// One row of logits to sample from. Its parameters depend on the row's path: the request's
// committed tokens, then the draft tokens from the root to the row.
struct SampleRow {
  float temperature = 1.0f;  // below 1e-5: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::span<const TokenCount> counts = {};  // distinct tokens; may be empty without penalties
  std::span<const std::pair<int32_t, float>> logit_bias = {};
  std::span<const int32_t> allowed_token_ids = {};  // sorted; empty: all
  // Bits of allowed tokens, as GrammarMatcher::fill_mask sets them; tokens past the last word are
  // forbidden. Empty: all may be sampled. Applied before a processor and again after.
  std::span<const uint32_t> allowed_mask = {};
  // Bad words that would complete, stops before min_tokens.
  std::span<const int32_t> banned_token_ids = {};
  // Run by who calls the backend, which then sets given_logits and empties lists and bias.
  RowProcessor* processor = nullptr;
  // Host, [vocab_size]: processed instead of the row's own, which raw modes still report; or null.
  const float* given_logits = nullptr;
  uint64_t seed = 0;
  int64_t position = 0;       // of the token to be sampled
  uint32_t noise_stream = 0;  // 0: the noise of plain decoding; other streams are independent of it
  int num_candidates = 0;     // of the result: most likely draws to report, best first
  // Out [vocab_size, or target_vocab_size]: normalised, after all processors; or null.
  float* distribution = nullptr;
  int num_logprobs = 0;  // top-N to report in addition to the token
  bool want_logprobs = false;
  // >= 0: report this token's logprobs (processed modes: after this row's processors), sample
  // nothing.
  int32_t forced_token = -1;
};

// A token that a draw would give, and its probability after all processors.
struct Candidate {
  int32_t token_id = -1;
  float probability = 0.0f;
};

struct SampleResult {
  int32_t token_id = -1;
  // The num_candidates largest perturbed logits, best first: the token itself, then what would have
  // been drawn without it, ... (Gumbel top-k: draws without replacement). Greedy rows: by logit,
  // with the softmax of the processed logits. Fewer where fewer tokens are permitted.
  std::vector<Candidate> candidates;
  PositionLogprobs logprobs;  // chosen first, then the top-N; empty unless asked for
  // Set where the row's processor failed; the row was sampled without it.
  std::exception_ptr error;
};

struct SampleArgs {
  float* logits = nullptr;  // [num_rows, vocab_size]; overwritten
  std::span<const SampleRow> rows;
  int vocab_size = 0;
  // For a draft head that scores only some tokens of the target's vocabulary: the target's id of
  // each column, [vocab_size], distinct, in memory that the backend's operations can read; or null.
  // Rows, results and noise then use target_vocab_size ids, and ids without a column have the logit
  // -inf. So a draft head draws with the same noise as the target.
  const int32_t* token_ids = nullptr;
  int target_vocab_size = 0;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  std::span<SampleResult> results;  // [num_rows]
};

}  // namespace specdec
