// Errors that a user of the library can meet. Everything thrown on purpose derives from
// specdec::Error; the Python binding maps each class to the built-in exception named beside it.
#pragma once

#include <stdexcept>
#include <string>

namespace specdec {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// ValueError: an argument, option or request field is out of range. The message names the field and
// what to write instead.
class InvalidArgument : public Error {
 public:
  InvalidArgument(std::string field, const std::string& message);
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// ValueError: a checkpoint on disk is missing, malformed or of an unknown family. The message names
// the file and, where there is one, the tensor.
class CheckpointError : public Error {
 public:
  CheckpointError(std::string file, std::string tensor, const std::string& message);
  const std::string& file() const { return file_; }
  const std::string& tensor() const { return tensor_; }

 private:
  std::string file_;
  std::string tensor_;
};

// MemoryError: the weights, the KV cache or a workspace do not fit. The message says what to lower.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// RuntimeError: a device, kernel or mode is not available in this build or on this machine.
class Unavailable : public Error {
 public:
  using Error::Error;
};

// RuntimeError: a request's grammar cannot go on, because it has become too costly or allows no
// token.
class GrammarError : public Error {
 public:
  using Error::Error;
};

// RuntimeError: an error that is no request's own has ended the engine. The message has the cause;
// make a new engine.
class EngineFailed : public Error {
 public:
  using Error::Error;
};

// RuntimeError: a rank of an engine on several devices has died, failed or not answered in time,
// which ended the engine. The message names the rank, the operation and the cause.
class RankFailure : public EngineFailed {
 public:
  RankFailure(int rank, std::string operation, const std::string& cause);
  int rank() const { return rank_; }
  const std::string& operation() const { return operation_; }
  // The same failure in other words.
  RankFailure with_message(const std::string& message) const;

 private:
  RankFailure(const std::string& message, int rank, std::string operation);

  int rank_;
  std::string operation_;
};

// RuntimeError: a bug in this library (a failed SPECDEC_CHECK).
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace specdec
