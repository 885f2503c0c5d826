// The tensor names of a family's checkpoints. Names of matrices and norms come without ".weight" or
// ".bias".
#pragma once

#include <array>
#include <string_view>

namespace specdec {

struct TensorNames {
  std::string_view prefix = "model.";  // absent where the network was saved without its LM head
  std::string_view embedding = "model.embed_tokens";
  std::string_view positions = {};    // of learned positions
  std::string_view project_in = {};   // from the embedding's width to the residual stream's
  std::string_view project_out = {};  // back to the embedding's width, before the LM head
  std::string_view final_norm = "model.norm";
  std::string_view lm_head = "lm_head";

  std::string_view layers = "model.layers.";            // then the layer's index, a dot and:
  std::string_view attention_norm = "input_layernorm";  // empty: no norm of the block's input
  std::string_view feature_norm = "hidden_norm";        // of AttentionInput::kWithEmbedding
  std::string_view attention_output_norm = {};
  // With only the first name: one matrix with the rows of all three.
  std::array<std::string_view, 3> qkv = {"self_attn.q_proj", "self_attn.k_proj",
                                         "self_attn.v_proj"};
  bool qkv_by_head = false;  // one matrix with each head's rows of q, k and v together
  std::string_view q_norm = "self_attn.q_norm";
  std::string_view k_norm = "self_attn.k_norm";
  std::string_view attention_out = "self_attn.o_proj";
  std::string_view sinks = "self_attn.sinks";  // whole, without ".weight"
  // Of recurrent layers: the block with their tensors, and in it the projections before and after
  // the recurrence. Of the first there is one, or several whose rows follow each other.
  std::string_view mixer = {};
  std::array<std::string_view, 2> mixer_in = {"in_proj"};
  std::array<std::string_view, 2> mixer_gates = {};
  bool mixer_by_key_head = false;  // the rows of mixer_in and mixer_gates are together by key head
  std::string_view mixer_conv = "conv1d";
  std::string_view mixer_out = "out_proj";
  std::string_view mixer_norm = "norm";
  std::string_view mlp_norm = "post_attention_layernorm";
  std::string_view mlp_output_norm = {};
  // With only the first name: a plain MLP, or one matrix with the rows of gate and up.
  std::array<std::string_view, 2> mlp_in = {"mlp.gate_proj", "mlp.up_proj"};
  std::string_view mlp_out = "mlp.down_proj";

  // For experts with one matrix each: the router, "<experts>.<index>.", then gate, up and down.
  std::string_view router = "mlp.gate";
  std::string_view selection_bias = {};  // of the router, whole; empty: none
  std::string_view experts = "mlp.experts";
  std::array<std::string_view, 3> expert = {"gate_proj", "up_proj", "down_proj"};
  // For experts in one tensor: all gates and ups, [num_experts, 2 * inner, hidden], and all downs.
  std::array<std::string_view, 2> stacked_experts = {"mlp.experts.gate_up_proj",
                                                     "mlp.experts.down_proj"};
  bool stacked_alternates = false;  // a gate, its up, the next gate, ...
  bool stacked_transposed = false;  // floating-point matrices are [inputs, outputs]
  // The MLP beside the experts: like mlp_in, mlp_out; the factor of its output, empty: none.
  std::array<std::string_view, 2> shared_in = {"mlp.shared_experts.gate_proj",
                                               "mlp.shared_experts.up_proj"};
  std::string_view shared_out = "mlp.shared_experts.down_proj";
  std::string_view shared_gate = {};
  // Of layers with norms of the blocks' outputs: the factors of what the router reads, which is
  // the normalised stream, and of each expert's weight (both whole); the norms of the experts'
  // input and output, and of the output of the MLP beside them.
  std::string_view router_scale = {};
  std::string_view expert_scales = {};
  std::string_view experts_norm = {};
  std::string_view experts_output_norm = {};
  std::string_view shared_output_norm = {};

  // The factor of the residual stream behind a layer (layer_scalar), whole; empty: none.
  std::string_view stream_scale = {};
  // Of per-layer embeddings: the table, and the projection of the usual embedding and its norm.
  std::string_view per_layer_embedding = "model.embed_tokens_per_layer";
  std::string_view per_layer_projection = "model.per_layer_model_projection";
  std::string_view per_layer_norm = "model.per_layer_projection_norm";
  // Of each layer: to the width of its embeddings, back, and the norm of the result.
  std::string_view per_layer_gate = "per_layer_input_gate";
  std::string_view per_layer_out = "per_layer_projection";
  std::string_view per_layer_output_norm = "post_per_layer_input_norm";

  // Of residual streams side by side (Gemma 3n): "<projections>.<stream - 1>", from the embedding
  // and back; of each layer, the block that holds its matrices, and the block beside attention.
  std::string_view stream_projections = "model.altup_projections";
  std::string_view stream_unprojections = "model.altup_unembed_projections";
  std::string_view streams = "altup";
  std::string_view laurel = "laurel";
};

}  // namespace specdec
