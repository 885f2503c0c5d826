// The calls of cuBLASLt, recorded by a fake library; and behaviour without the library.
#include "cuda/gemm/cublaslt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "testing/library_stream.h"
#include "testing/thrown.h"

namespace specdec::cuda {
namespace {

using namespace cublaslt;

using testing::LibraryStream;

struct LayoutRecord {
  DataType dtype;
  uint64_t rows, columns;
  int64_t ld;
  bool operator==(const LayoutRecord&) const = default;
};
LayoutRecord* record_of(MatrixLayout* layout) { return reinterpret_cast<LayoutRecord*>(layout); }

// The calls that the fake library got, and its answers.
struct Library {
  int num_alive = 0;  // objects
  bool transposes_weights = false;
  uint64_t workspace_bytes = 0;
  uint32_t alignment = 0;
  std::vector<uint64_t> asked_rows;  // asked of the heuristic
  Status checks = kSuccess;          // returned by MatmulAlgoCheck
  Status multiplies = kSuccess;      // returned by Matmul

  // The last product's arguments.
  LayoutRecord weights{}, rows{}, sums{};
  const void* pointers[3] = {};
  float beta = -1;
  uint64_t algorithm = 0;
  void* stream = nullptr;
};
Library library;

template <class T>
Status make(T** object) {
  ++library.num_alive;
  *object = reinterpret_cast<T*>(new LayoutRecord);
  return kSuccess;
}
template <class T>
Status destroy(T* object) {
  --library.num_alive;
  delete reinterpret_cast<LayoutRecord*>(object);
  return kSuccess;
}

// An algorithm's number is the number of rows that was asked for.
Status find(Context*, MatmulDesc*, MatrixLayout*, MatrixLayout* rows, MatrixLayout*, MatrixLayout*,
            Preference*, int num_requested, HeuristicResult* results, int* num_results) {
  const uint64_t num_rows = record_of(rows)->columns;
  library.asked_rows.push_back(num_rows);
  *num_results = std::min(num_requested, 3);
  for (int i = 0; i < *num_results; ++i) {
    results[i].algorithm.data[0] = 10 * num_rows + static_cast<uint64_t>(i);
    results[i].status = i == 1 ? 15 : kSuccess;  // one that cannot be used
  }
  return kSuccess;
}

Status multiply(Context*, MatmulDesc*, const void* alpha, const void* a, MatrixLayout* a_layout,
                const void* b, MatrixLayout* b_layout, const void* beta, const void* c,
                MatrixLayout*, void* d, MatrixLayout* d_layout, const Algorithm* algorithm, void*,
                size_t, void* stream) {
  EXPECT_EQ(*static_cast<const float*>(alpha), 1.0f);
  EXPECT_EQ(c, d);
  library.weights = *record_of(a_layout);
  library.rows = *record_of(b_layout);
  library.sums = *record_of(d_layout);
  library.pointers[0] = a;
  library.pointers[1] = b;
  library.pointers[2] = d;
  library.beta = *static_cast<const float*>(beta);
  library.algorithm = algorithm->data[0];
  library.stream = stream;
  return library.multiplies;
}

Api made_up_api() {
  return {
      .GetVersion = [] { return size_t{130203}; },
      .GetStatusString = [](Status) { return "it is made up"; },
      .Create = make<Context>,
      .Destroy = destroy<Context>,
      .MatmulDescCreate = [](MatmulDesc** desc, ComputeType, DataType) { return make(desc); },
      .MatmulDescDestroy = destroy<MatmulDesc>,
      .MatmulDescSetAttribute =
          [](MatmulDesc*, DescAttribute attribute, const void* value, size_t size_bytes) {
            EXPECT_EQ(size_bytes, 4u);
            library.transposes_weights =
                attribute == DescAttribute::kTransA && *static_cast<const int*>(value) == 1;
            return kSuccess;
          },
      .MatrixLayoutCreate =
          [](MatrixLayout** layout, DataType dtype, uint64_t rows, uint64_t columns, int64_t ld) {
            const Status status = make(layout);
            *record_of(*layout) = {dtype, rows, columns, ld};
            return status;
          },
      .MatrixLayoutDestroy = destroy<MatrixLayout>,
      .MatmulPreferenceCreate = make<Preference>,
      .MatmulPreferenceDestroy = destroy<Preference>,
      .MatmulPreferenceSetAttribute =
          [](Preference*, PreferenceAttribute attribute, const void* value, size_t) {
            if (attribute == PreferenceAttribute::kMaxWorkspaceBytes) {
              library.workspace_bytes = *static_cast<const uint64_t*>(value);
            } else {
              library.alignment = *static_cast<const uint32_t*>(value);
            }
            return kSuccess;
          },
      .MatmulAlgoGetHeuristic = find,
      .MatmulAlgoCheck = [](Context*, MatmulDesc*, MatrixLayout*, MatrixLayout*, MatrixLayout*,
                            MatrixLayout*, const Algorithm*,
                            HeuristicResult*) { return library.checks; },
      .Matmul = multiply};
}

class CublasltTest : public ::testing::Test {
 protected:
  CublasltTest() : gemm_((library = {}, make_cublaslt(made_up_api()))) {}

  void run(int way, bool accumulate = false) {
    gemm_->run(stream_, way,
               {.shape = shape_,
                .weights = &weights_,
                .rows = &rows_,
                .sums = &sums_,
                .accumulate = accumulate});
  }

  LibraryStream stream_;
  std::unique_ptr<Gemm> gemm_;
  GemmShape shape_ = {
      .dtype = DType::kF16, .num_rows = 300, .num_outputs = 48, .num_inputs = 64, .ld = 80};
  char weights_ = 0, rows_ = 0;
  float sums_ = 0;
};

TEST_F(CublasltTest, RowMajorMatricesAreColumnMajorOnesTransposed) {
  run(0, true);
  EXPECT_TRUE(library.transposes_weights);
  EXPECT_EQ(library.weights, (LayoutRecord{DataType::kF16, 64, 48, 64}));
  EXPECT_EQ(library.rows, (LayoutRecord{DataType::kF16, 64, 300, 64}));
  EXPECT_EQ(library.sums, (LayoutRecord{DataType::kF32, 48, 300, 80}));
  EXPECT_EQ(library.pointers[0], &weights_);
  EXPECT_EQ(library.pointers[1], &rows_);
  EXPECT_EQ(library.pointers[2], &sums_);
  EXPECT_EQ(library.beta, 1.0f);
  EXPECT_EQ(library.stream, &stream_);
  EXPECT_EQ(library.workspace_bytes, gemm_->workspace_bytes());
  EXPECT_EQ(library.alignment, 16u);
  run(0);
  EXPECT_EQ(library.beta, 0.0f);
}

TEST_F(CublasltTest, AlgorithmsAreThoseOfABucketOfRows) {
  EXPECT_EQ(gemm_->num_ways(stream_, shape_), 2);
  run(1);
  EXPECT_EQ(library.algorithm, 5122u) << "the one before it cannot be used";
  shape_.num_rows = 500;
  run(0);
  EXPECT_EQ(library.algorithm, 5120u);
  EXPECT_EQ(library.asked_rows, std::vector<uint64_t>{512}) << "once";
}

TEST_F(CublasltTest, RowsThatAnAlgorithmDoesNotServeGetTheirOwn) {
  library.checks = 15;
  run(1);
  EXPECT_EQ(library.algorithm, 3000u);
}

TEST_F(CublasltTest, AnErrorOfTheLibraryIsADeviceError) {
  library.multiplies = 13;
  EXPECT_STREQ(specdec::testing::error_of<DeviceError>([&] { run(0); }).what(),
               "cublasLtMatmul: it is made up");
}

TEST_F(CublasltTest, NothingIsLeftBehind) {
  run(0);
  EXPECT_EQ(library.num_alive, 2) << "the context and the preference";
  gemm_.reset();
  EXPECT_EQ(library.num_alive, 0);
}

TEST_F(CublasltTest, ItsVersionIsInItsName) { EXPECT_EQ(gemm_->name(), "cublasLt 13.2.3"); }

TEST(OpenCublaslt, WhatIsMissingIsSaid) {
  EXPECT_EQ(open_cublaslt({"libnone.so.2", "libnone.so.1"}).problem,
            "there is no libnone.so.2 or libnone.so.1");
  EXPECT_EQ(open_cublaslt({"libnone.so.2", "libm.so.6"}).problem,
            "libm.so.6 has no cublasLtMatmul");
}

}  // namespace
}  // namespace specdec::cuda
