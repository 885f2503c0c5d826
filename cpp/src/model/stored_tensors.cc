#include "model/stored_tensors.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

std::string list_of(std::span<const int64_t> values) {
  std::string list;
  for (const int64_t value : values) list += str_cat(list.empty() ? "" : ", ", value);
  return list;
}

}  // namespace

void StoredTensors::fail(const std::string& name, const std::string& message) const {
  throw CheckpointError(path_of(name), name, message);
}

std::string stem_of(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

void MatrixTensors::check(const std::string& name, std::initializer_list<int64_t> shape,
                          std::initializer_list<DType> dtypes) const {
  const SafetensorsEntry* found = tensors_.find(name);
  if (found == nullptr) {
    tensors_.fail(name, str_cat("the checkpoint has no such tensor, and ", name_, " needs it"));
  }
  if (!found->dtype.has_value() || std::ranges::find(dtypes, *found->dtype) == dtypes.end()) {
    std::string expected;
    for (const DType dtype : dtypes) {
      expected += str_cat(expected.empty() ? "" : " or ", name_of(dtype));
    }
    tensors_.fail(name, str_cat("dtype ", found->dtype_name, ", expected ", expected));
  }
  if (!std::ranges::equal(found->shape, shape)) {
    tensors_.fail(name, str_cat("shape [", list_of(found->shape), "], expected [",
                                list_of(std::span(shape.begin(), shape.size())), "]: ", name_,
                                " has ", num_rows_, " outputs and ", num_k_, " inputs"));
  }
}

Buffer MatrixTensors::read_whole(const std::string& name) {
  return tensors_.read_raw(name, {0, tensors_.find(name)->num_rows()});
}

int64_t MatrixTensors::extent_of(const std::string& name, size_t axis) const {
  const SafetensorsEntry* found = tensors_.find(name);
  return found != nullptr && found->shape.size() == 2 ? found->shape[axis] : 0;
}

void MatrixTensors::check_finite(const std::string& name, const std::vector<float>& values) const {
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    tensors_.fail(name, "a value is NaN or infinite");
  }
}

void MatrixTensors::check_even_inputs(const std::string& name) const {
  if (num_k_ % 2 == 0) return;
  tensors_.fail(name, str_cat(num_k_, " inputs per output, expected an even number"));
}

std::vector<float> MatrixTensors::read_floats(const std::string& name, RowRange rows,
                                              int64_t width) {
  const SafetensorsEntry& stored = *tensors_.find(name);
  // A vector is one row of its file.
  const bool is_vector = stored.shape.size() < 2;
  const Buffer bytes = is_vector ? read_whole(name) : tensors_.read_raw(name, rows);
  const auto skipped = static_cast<size_t>(is_vector ? rows.begin * width : 0);
  std::vector<float> values(static_cast<size_t>(rows.count * width));
  to_floats(bytes.as<std::byte>() + skipped * size_of(*stored.dtype), *stored.dtype, values.size(),
            values.data());
  check_finite(name, values);
  return values;
}

std::vector<float> MatrixTensors::read_vector(const std::string& name, int64_t size) {
  check(name, {size}, {DType::kF32});
  return read_floats(name, {0, size}, 1);
}

float MatrixTensors::read_scalar(const std::string& name) {
  const SafetensorsEntry* found = tensors_.find(name);
  const size_t rank = found != nullptr ? found->shape.size() : 1;
  if (rank == 0) {
    check(name, {}, kFloatingDTypes);
  } else if (rank == 2) {
    check(name, {1, 1}, kFloatingDTypes);
  } else {
    check(name, {1}, kFloatingDTypes);
  }
  return read_floats(name, {0, 1}, 1).front();
}

std::vector<float> MatrixTensors::read_scales(const std::string& name) {
  const SafetensorsEntry* found = tensors_.find(name);
  if (num_groups_ == 1 && found != nullptr && found->shape.size() == 1) {
    check(name, {num_rows_}, kFloatingDTypes);
  } else {
    check(name, {num_rows_, num_groups_}, kFloatingDTypes);
  }
  return read_floats(name, own_, num_groups_);
}

std::vector<int32_t> MatrixTensors::read_group_index(const std::string& name) {
  if (!has(name)) return {};
  check(name, {num_k_}, {DType::kI32});
  const Buffer bytes = read_whole(name);
  std::vector<int32_t> groups(bytes.as<int32_t>(), bytes.as<int32_t>() + num_k_);
  bool in_order = true;
  for (int64_t k = 0; k < num_k_; ++k) {
    const int32_t group = groups[static_cast<size_t>(k)];
    if (group < 0 || group >= num_groups_) {
      tensors_.fail(name, str_cat("input ", k, " is in group ", group, " of ", num_groups_));
    }
    in_order = in_order && group == k / group_size();
  }
  if (in_order) groups.clear();
  return groups;
}

void MatrixTensors::set_groups(const std::string& name, int64_t num_groups) {
  if (num_groups < 1 || num_k_ % num_groups != 0) {
    tensors_.fail(name, str_cat(num_groups, " scales per output of ", num_k_,
                                " inputs, expected one for each group of equal size"));
  }
  // With a shorter last group the number of scales may divide the inputs by chance.
  if (usual_group_ > 0 && num_k_ % usual_group_ != 0 &&
      num_groups == (num_k_ + usual_group_ - 1) / usual_group_) {
    tensors_.fail(name, str_cat("groups of ", usual_group_, " (group_size) do not divide the ",
                                num_k_, " inputs of an output, and a shorter group is not read"));
  }
  num_groups_ = num_groups;
}

int MatrixTensors::bits_by_words(const std::string& name, int64_t num_words) const {
  for (const int bits : {4, 8, 3, 2}) {
    if (words_of(num_k_, bits) == num_words) return bits;
  }
  tensors_.fail(name, str_cat(num_words, " words of 32 bits per output of ", num_k_,
                              " inputs, expected codes of 2, 3, 4 or 8 bits"));
}

}  // namespace specdec
