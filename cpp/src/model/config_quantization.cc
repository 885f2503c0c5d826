#include "model/config_quantization.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>

#include "core/str_cat.h"

namespace specdec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "quantization_config";
constexpr const char* kInstead =
    "; give a GGUF file, or the unquantised checkpoint with quantization='int8' or 'int4'";

// Tools whose files are not read, and what their weights are.
struct OtherMethod {
  std::string_view name;
  std::string_view what;
};
constexpr auto kOtherMethods = std::to_array<OtherMethod>({
    {"aqlm", "sums of codebooks of vectors"},
    {"auto-round-light", "codes of its own"},
    {"bitnet", "ternary codes with activations rounded to 8 bits"},
    {"eetq", "codes in the order of one GPU kernel"},
    {"exl2", "several numbers of bits per matrix"},
    {"exl3", "trellis codes with Hadamard transforms"},
    {"fp_quant", "4-bit floats with Hadamard transforms"},
    {"gemma", "integers whose activations are rounded, too"},
    {"higgs", "codes of vectors with Hadamard transforms"},
    {"hqq", "zeros in floating point per group"},
    {"metal", "MLX's codes with a scale and a bias per group"},
    {"quanto", "codes of torch subclasses"},
    {"quark", "codes of AMD's tool"},
    {"quip", "codes of vectors with Hadamard transforms"},
    {"sinq", "two scales per weight"},
    {"spqr", "outliers apart from codes"},
    {"torchao", "tensor subclasses of PyTorch"},
    {"vptq", "codebooks of vectors"},
});

// Values in `known`, as a message lists them.
template <size_t kCount>
std::string listed(const std::array<std::string_view, kCount>& known) {
  std::string list;
  for (const std::string_view name : known) list += str_cat(list.empty() ? "'" : ", '", name, "'");
  return list;
}

// A string that must be one of `known`.
template <size_t kCount>
std::string get_one_of(const JsonFields& fields, const char* key,
                       const std::array<std::string_view, kCount>& known) {
  const std::string value = fields.get_string(key, std::string(known.front()));
  if (std::ranges::find(known, value) != known.end()) return value;
  fields.fail(key, str_cat("'", value, "' is not read, only ", listed(known), kInstead));
}

int get_bits(const JsonFields& fields, const char* key, std::initializer_list<int> known) {
  const int bits = fields.get_int(key, 4);
  if (std::ranges::find(known, bits) != known.end()) return bits;
  std::string list;
  for (const int value : known) list += str_cat(list.empty() ? "" : ", ", value);
  fields.fail(key, str_cat(bits, " bits are not read, only ", list, kInstead));
}

// Inputs that share a scale; -1: all of a row. Some matrices may differ, as their tensors show.
void parse_group_size(const JsonFields& fields, const char* key, ModelConfig& config) {
  if (!fields.has(key)) return;
  const int size = fields.get_int(key, {}, -1);
  if (size == 0) fields.fail(key, "expected -1 or more than 0, got 0");
  config.scheme.group_size = std::max(size, 0);
}

// [rows, inputs], or "128x128"; absent: no blocks.
ScaleBlock parse_block(const JsonFields& fields, const char* key) {
  const nlohmann::json* value = fields.find(key);
  if (value == nullptr) return {};
  if (*value == "128x128") return {.rows = 128, .cols = 128};
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
  config.scheme.block = parse_block(fields, "weight_block_size");
}

void parse_fbgemm_fp8(const JsonFields& fields, ModelConfig& config) {
  config.stored_format = "fbgemm_fp8";
  fields.pass_over({"activation_scale_ub", "modules_to_not_convert"});
}

void parse_awq(const JsonFields& fields, ModelConfig& config) {
  get_one_of(fields, "version", std::to_array<std::string_view>({"gemm", "GEMM"}));
  get_one_of(fields, "backend", std::to_array<std::string_view>({"autoawq", "auto", "auto_round"}));
  get_bits(fields, fields.has("w_bit") ? "w_bit" : "bits", {4});
  parse_group_size(fields, fields.has("q_group_size") ? "q_group_size" : "group_size", config);
  if (!fields.get_bool("zero_point", true)) {
    fields.fail("zero_point", str_cat("false is not read, only true", kInstead));
  }
  fields.pass_over({"bits", "group_size", "modules_to_not_convert", "exllama_config", "do_fuse",
                    "fuse_max_seq_len", "modules_to_fuse"});
  config.scheme.is_awq = true;
  config.stored_format = "awq";
}

// Also of AutoRound, which writes the same tensors.
void parse_gptq(const JsonFields& fields, ModelConfig& config) {
  const char* format_key = fields.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format =
      get_one_of(fields, format_key, std::to_array<std::string_view>({"gptq", "gptq_v2"}));
  const int bits = get_bits(fields, "bits", {4, 8, 3, 2});
  parse_group_size(fields, "group_size", config);
  get_one_of(fields, "pack_dtype", std::to_array<std::string_view>({"int32", "torch.int32"}));
  get_one_of(fields, "data_type", std::to_array<std::string_view>({"int"}));
  // The tensors say which matrices are stored so, in how many bits and in which groups. The rest
  // says how the codes were found, and with which kernels others multiply them.
  fields.pass_over({"sym",
                    "desc_act",
                    "static_groups",
                    "lm_head",
                    "dynamic",
                    "damp_percent",
                    "true_sequential",
                    "meta",
                    "modules_in_block_to_quantize",
                    "model_seqlen",
                    "model_name_or_path",
                    "model_file_base_name",
                    "dataset",
                    "tokenizer",
                    "batch_size",
                    "block_name_to_quantize",
                    "module_name_preceding_first_block",
                    "pad_token_id",
                    "use_cuda_fp16",
                    "use_exllama",
                    "exllama_config",
                    "disable_exllama",
                    "max_input_length",
                    "cache_block_outputs",
                    "quantizer",
                    "hyb_act",
                    "act_group_aware",
                    "is_marlin_format",
                    "checkpoint_format",
                    "format",
                    "method"});
  config.scheme.zero_offset = format == "gptq" ? 1 : 0;
  config.stored_format = str_cat("gptq ", bits, "-bit");
}

void parse_auto_round(const JsonFields& fields, ModelConfig& config) {
  const std::string packing =
      get_one_of(fields, "packing_format",
                 std::to_array<std::string_view>({"auto_round:auto_gptq", "auto_gptq",
                                                  "auto_round:gptq", "auto_round:auto_awq"}));
  fields.pass_over({"autoround_version",
                    "iters",
                    "lr",
                    "minmax_lr",
                    "low_gpu_mem_usage",
                    "nsamples",
                    "seqlen",
                    "scale_dtype",
                    "amp",
                    "gradient_accumulate_steps",
                    "not_use_best_mse",
                    "dynamic_max_gap",
                    "enable_minmax_tuning",
                    "enable_norm_bias_tuning",
                    "enable_quanted_input",
                    "enable_alg_ext",
                    "to_quant_block_names",
                    "block_name_to_quantize",
                    "quant_block_list",
                    "extra_config",
                    "super_bits",
                    "super_group_size",
                    "act_bits",
                    "act_data_type",
                    "act_dynamic",
                    "act_group_size",
                    "act_sym",
                    "backend",
                    "train_bs",
                    "rotation_config"});
  if (packing != "auto_round:auto_awq") return parse_gptq(fields, config);
  get_bits(fields, "bits", {4});
  parse_group_size(fields, "group_size", config);
  fields.pass_over({"sym", "data_type", "modules_to_not_convert"});
  config.scheme.is_awq = true;
  config.stored_format = "awq";
}

// --- compressed-tensors ---

constexpr auto kTensorFormats = std::to_array<std::string_view>(
    {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
     "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision",
     "dense"});

std::string get_tensor_format(const JsonFields& fields) {
  if (!fields.has("format")) return "";
  return get_one_of(fields, "format", kTensorFormats);
}

// One entry of config_groups.
void parse_group(const JsonFields& group, ModelConfig& config) {
  get_tensor_format(group);
  // The tensors say which matrices are stored so; activations are not rounded here.
  group.pass_over({"targets", "input_activations", "output_activations"});
  if (!group.has("weights")) return;
  const JsonFields weights = group.get_object("weights");
  // How codes were found does not matter, and the tensors give the dtypes of scales.
  weights.pass_over({"observer", "observer_kwargs", "scale_dtype", "zp_dtype", "actorder"});
  if (weights.get_bool("dynamic", false)) {
    weights.fail("dynamic",
                 str_cat("is true, and weights are not quantised at run time", kInstead));
  }
  parse_group_size(weights, "group_size", config);
  if (get_one_of(weights, "type", std::to_array<std::string_view>({"int", "float"})) == "int") {
    get_bits(weights, "num_bits", {2, 3, 4, 8});
    config.scheme.needs_zeros &= !weights.get_bool("symmetric", true);
  } else {
    weights.pass_over({"symmetric"});
    get_bits(weights, "num_bits", {4, 8});
  }
  const std::string strategy = get_one_of(
      weights, "strategy",
      std::to_array<std::string_view>({"tensor", "channel", "group", "block", "tensor_group"}));
  const ScaleBlock block = parse_block(weights, "block_structure");
  if (block.rows == 0 || strategy != "block") return;
  ScaleBlock& known = config.scheme.block;
  if (known.rows != 0 && (known.rows != block.rows || known.cols != block.cols)) {
    weights.fail("block_structure", "differs from that of another group");
  }
  known = block;
}

// Fails unless `key` is absent or an empty object: transforms of activations or weights.
void check_no_transforms(const JsonFields& fields, const char* key) {
  const nlohmann::json* value = fields.find(key);
  if (value == nullptr || value->empty()) return;
  fields.fail(key, str_cat("transforms of activations are not computed", kInstead));
}

void parse_compressed_tensors(const JsonFields& fields, ModelConfig& config) {
  const std::string format = get_tensor_format(fields);
  fields.pass_over(
      {"global_compression_ratio", "ignore", "kv_cache_scheme", "quantization_status", "version"});
  check_no_transforms(fields, "transform_config");
  if (fields.has("sparsity_config")) {
    const JsonFields sparsity = fields.get_object("sparsity_config");
    if (sparsity.get_string("format", "dense") != "dense") {
      sparsity.fail("format", str_cat("sparse weights are not read, only 'dense'", kInstead));
    }
    sparsity.pass_over({"global_sparsity", "ignore", "registry_requires_subclass",
                        "sparsity_structure", "targets"});
  }
  config.stored_format = str_cat("compressed-tensors", format.empty() ? "" : " ", format);
  if (!fields.has("config_groups")) return;
  const JsonFields groups = fields.get_object("config_groups");
  config.scheme.needs_zeros = !groups.object().empty();
  for (const auto& [name, group] : groups.object().items()) {
    parse_group(groups.get_object(name.c_str()), config);
  }
}

// --- ModelOpt and bitsandbytes ---

void parse_modelopt(const JsonFields& fields, ModelConfig& config) {
  const std::string algorithm =
      get_one_of(fields, "quant_algo",
                 std::to_array<std::string_view>({"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO",
                                                  "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"}));
  parse_group_size(fields, "group_size", config);
  fields.pass_over({"exclude_modules", "ignore", "kv_cache_quant_algo", "kv_cache_scheme",
                    "config_groups", "quantized_layers", "producer"});
  constexpr int kBlock = 128;
  if (algorithm == "FP8_PB_WO") config.scheme.block = {.rows = kBlock, .cols = kBlock};
  config.stored_format = str_cat("modelopt ", algorithm);
}

void parse_bitsandbytes(const JsonFields& fields, ModelConfig& config) {
  const bool is_4bit = fields.get_bool("load_in_4bit", false);
  if (!is_4bit && !fields.get_bool("load_in_8bit", false)) {
    fields.fail("load_in_4bit", "neither this key nor load_in_8bit is true");
  }
  fields.pass_over({"load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype",
                    "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant",
                    "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
                    "llm_int8_skip_modules", "llm_int8_threshold"});
  const std::string type =
      get_one_of(fields, "bnb_4bit_quant_type", std::to_array<std::string_view>({"fp4", "nf4"}));
  config.stored_format = str_cat("bitsandbytes ", is_4bit ? type : "int8");
}

// The experts of gpt-oss.
void parse_mxfp4(const JsonFields& fields, ModelConfig& config) {
  fields.pass_over({"modules_to_not_convert"});
  config.stored_format = "mxfp4";
}

struct Method {
  std::string_view name;
  void (*parse)(const JsonFields& fields, ModelConfig& config);
};
constexpr auto kMethods = std::to_array<Method>({{"specdec_native", parse_native},
                                                 {"fp8", parse_fp8},
                                                 {"fbgemm_fp8", parse_fbgemm_fp8},
                                                 {"compressed-tensors", parse_compressed_tensors},
                                                 {"gptq", parse_gptq},
                                                 {"awq", parse_awq},
                                                 {"auto-round", parse_auto_round},
                                                 {"intel/auto-round", parse_auto_round},
                                                 {"bitsandbytes", parse_bitsandbytes},
                                                 {"mxfp4", parse_mxfp4},
                                                 {"modelopt", parse_modelopt},
                                                 {"modelopt_fp4", parse_modelopt}});

// A key that nobody reads may change what codes mean.
void check_all_read(const JsonFields& fields) {
  fields.visit_unread(
      [](const JsonFields& scope, const std::string& key, const nlohmann::json& value) {
        if (value.is_null()) return;
        scope.fail(key.c_str(), str_cat("is ", excerpt(value),
                                        ", and nothing is known of this key, which may change what "
                                        "the codes of weights mean; if it changes nothing, take it "
                                        "out of the file"));
      });
}

void parse_with(const JsonFields& fields, const std::string& method, ModelConfig& config) {
  const auto known = std::ranges::find(kMethods, method, &Method::name);
  if (known != kMethods.end()) {
    known->parse(fields, config);
    return check_all_read(fields);
  }
  const auto other = std::ranges::find(kOtherMethods, method, &OtherMethod::name);
  std::string names;
  for (const Method& one : kMethods) names += str_cat(names.empty() ? "" : ", ", one.name);
  fields.fail("quant_method",
              str_cat("weights of '", method, "' are not read",
                      other != kOtherMethods.end() ? str_cat(" (", other->what, ")") : "",
                      ", only of ", names, kInstead));
}

// Settings that older tools keep in a file of their own.
struct SettingsFile {
  const char* name;
  const char* scope;  // the object with the settings; null: the whole file
  const char* method;
};
constexpr auto kSettingsFiles =
    std::to_array<SettingsFile>({{"quantize_config.json", nullptr, "gptq"},
                                 {"hf_quant_config.json", "quantization", "modelopt"}});

void parse_settings_file(const std::string& directory, ModelConfig& config) {
  for (const SettingsFile& file : kSettingsFiles) {
    const std::string path = (fs::path(directory) / file.name).string();
    if (!file_exists(path)) continue;
    const nlohmann::json json = read_json_object(path);
    const JsonFields whole(path, json);
    const JsonFields fields = file.scope != nullptr ? whole.get_object(file.scope) : whole;
    return parse_with(fields, fields.get_string("quant_method", file.method), config);
  }
}

}  // namespace

void parse_quantization_config(const JsonFields& fields, const std::string& directory,
                               ModelConfig& config) {
  const nlohmann::json* value = fields.find(kKey);
  if (value == nullptr) {
    if (fields.has("quantization") && fields.find("quantization")->is_object()) {
      fields.fail("quantization", str_cat("MLX's codes are not read", kInstead));
    }
    return parse_settings_file(directory, config);
  }
  if (value->is_boolean() && !value->get<bool>()) return;
  const JsonFields settings = fields.get_object(kKey);
  parse_with(settings, settings.get_string("quant_method", ""), config);
}

}  // namespace specdec
