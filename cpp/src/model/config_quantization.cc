#include "model/config_quantization.h"

#include <limits>

#include "core/str_cat.h"

namespace specdec {
namespace {

constexpr const char* kKey = "quantization_config";

// [rows, inputs]; absent: no blocks.
ScaleBlock parse_block(const JsonFields& fields, const char* key) {
  const nlohmann::json* value = fields.find(key);
  if (value == nullptr) return {};
  const auto is_size = [](const nlohmann::json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() > 0 &&
           size.get<uint64_t>() <= uint64_t{std::numeric_limits<int>::max()};
  };
  if (!value->is_array() || value->size() != 2 || !is_size((*value)[0]) || !is_size((*value)[1])) {
    fields.fail(key, "expected two positive integers, rows and inputs of a block");
  }
  return {.rows = (*value)[0].get<int>(), .cols = (*value)[1].get<int>()};
}

// Integers in the layout of WeightStore::matrix, which the Python package writes from GGUF files.
void parse_native(const JsonFields& fields, ModelConfig& config) {
  if (fields.get_int("group_size", kQuantGroup) != kQuantGroup) {
    fields.fail("group_size", str_cat("expected ", kQuantGroup));
  }
  config.stored_format = fields.get_string("format", "integers");
}

void parse_fp8(const JsonFields& fields, ModelConfig& config) {
  if (const std::string format = fields.get_string("fmt", "e4m3"); format != "e4m3") {
    fields.fail("fmt", str_cat("'", format, "' is not read, only 'e4m3'"));
  }
  config.stored_format = "fp8";
  // Inputs of projections are not rounded to 8-bit floats here, and the tensors say which matrices
  // are stored so.
  fields.pass_over({"activation_scheme", "act_per_tensor", "dequantize", "ignored_layers",
                    "is_checkpoint_fp8_serialized", "kv_cache_quant_method", "kv_cache_scheme",
                    "modules_to_not_convert", "scale_fmt", "weight_per_tensor"});
  config.scale_block = parse_block(fields, "weight_block_size");
}

void check_format(const JsonFields& fields, const std::string& absent) {
  const std::string format = fields.get_string("format", absent);
  if (format == "float-quantized") return;
  fields.fail("format", str_cat("'", format,
                                "' of quant_method 'compressed-tensors' is not read, only "
                                "'float-quantized' (8-bit floats)"));
}

// One entry of config_groups.
void parse_group(const JsonFields& group, ModelConfig& config) {
  check_format(group, "float-quantized");
  // The tensors say which matrices are stored so; activations are not rounded here.
  group.pass_over({"targets", "input_activations", "output_activations"});
  if (!group.has("weights")) return;
  const JsonFields weights = group.get_object("weights");
  // How scales were found does not matter, and the tensors give their dtypes and group size.
  weights.pass_over({"observer", "observer_kwargs", "scale_dtype", "zp_dtype", "group_size"});
  const std::string type = weights.get_string("type", "int");
  if (type != "float") weights.fail("type", str_cat("'", type, "' is not read, only 'float'"));
  if (weights.get_int("num_bits", 8) != 8) weights.fail("num_bits", "only 8 is read");
  if (!weights.get_bool("symmetric", true)) weights.fail("symmetric", "only true is read");
  const std::string strategy = weights.get_string("strategy", "tensor");
  if (strategy != "tensor" && strategy != "channel" && strategy != "block") {
    weights.fail("strategy",
                 str_cat("'", strategy, "' is not read, only 'tensor', 'channel' and 'block'"));
  }
  const ScaleBlock block = parse_block(weights, "block_structure");
  if (block.rows == 0) return;
  if (config.scale_block.rows != 0 &&
      (config.scale_block.rows != block.rows || config.scale_block.cols != block.cols)) {
    weights.fail("block_structure", "differs from that of another group");
  }
  config.scale_block = block;
}

void parse_compressed_tensors(const JsonFields& fields, ModelConfig& config) {
  check_format(fields, "");
  fields.pass_over(
      {"global_compression_ratio", "ignore", "kv_cache_scheme", "quantization_status", "version"});
  if (fields.has("sparsity_config")) {
    const JsonFields sparsity = fields.get_object("sparsity_config");
    if (sparsity.get_string("format", "dense") != "dense") {
      sparsity.fail("format", "sparse weights are not read, only 'dense'");
    }
    sparsity.pass_over({"global_sparsity", "ignore", "registry_requires_subclass",
                        "sparsity_structure", "targets"});
  }
  config.stored_format = "compressed-tensors";
  if (!fields.has("config_groups")) return;
  const JsonFields groups = fields.get_object("config_groups");
  for (const auto& [name, group] : groups.object().items()) {
    parse_group(groups.get_object(name.c_str()), config);
  }
}

}  // namespace

void parse_quantization_config(const JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* value = fields.find(kKey);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>())) return;
  const JsonFields quantization = fields.get_object(kKey);
  const std::string method = quantization.get_string("quant_method", "");
  if (method == "specdec_native") return parse_native(quantization, config);
  if (method == "fp8") return parse_fp8(quantization, config);
  if (method == "compressed-tensors") return parse_compressed_tensors(quantization, config);
  if (method == "fbgemm_fp8") {
    config.stored_format = method;
    quantization.pass_over({"activation_scale_ub", "modules_to_not_convert"});
    return;
  }
  quantization.fail("quant_method",
                    str_cat("weights quantised by '", method,
                            "' are not read, only 'fp8', 'fbgemm_fp8' and 'compressed-tensors' in "
                            "8-bit floats; give the unquantized checkpoint with "
                            "quantization='int8' or 'int4', or of a model a GGUF file"));
}

}  // namespace specdec
