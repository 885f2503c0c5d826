// Where an answer is in the text that was predicted for it.
#pragma once

#include <cstdint>
#include <span>

namespace specdec {

// The place is the predicted token that comes next. It begins with the first one and moves on while
// the answer repeats the prediction. After another token it is found again: behind the longest
// match of the last tokens of the answer in the prediction. Between matches of equal length it is
// the first one after the last place, else the last one before. Place and match follow from the
// tokens alone, however they come in steps.
class PredictionPlace {
 public:
  // Longer matches count as equally long.
  static constexpr int kLongestMatch = 32;

  // Reads the tokens that the answer has got since the last call. `prediction` is that of all
  // calls.
  void follow(std::span<const int32_t> prediction, std::span<const int32_t> answer);

  // Index of the predicted token that comes next; the size of the prediction where none is left.
  int next() const { return next_; }
  // Number of tokens before next() that the answer has just repeated; 0: none.
  int match_length() const { return match_length_; }
  // Whether the answer has had a token that was not the next one predicted.
  bool has_left() const { return has_left_; }

 private:
  // The answer has left the prediction, and its last token is nowhere in it.
  bool is_lost() const { return has_left_ && match_length_ == 0; }
  void find(std::span<const int32_t> prediction, std::span<const int32_t> answer);

  int num_read_ = 0;  // tokens of the answer
  int next_ = 0;
  int match_length_ = 0;
  bool has_left_ = false;
};

}  // namespace specdec
