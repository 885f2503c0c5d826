// Texts of finished requests that others are drafted from, apart by cache_salt: an answer is never
// drafted from a text of another salt, so its speed tells nothing about that text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace specdec {

// Every salt, the empty one included, has `Texts` of its own, with num_texts(), used_bytes(),
// memory_bytes() and evict_oldest(). All salts together stay within a number of texts and of bytes.
// Beyond it the oldest text of the salt that holds most is evicted, of equal ones that of the salt
// that was added to least recently. So a salt keeps its share however much others add.
template <class Texts>
class SaltedTexts {
 public:
  // What the texts of a salt count for beside their content.
  static constexpr int64_t kTextsBytes = int64_t{32} << 10;

  SaltedTexts(int max_texts, int64_t max_bytes) : max_texts_(max_texts), max_bytes_(max_bytes) {}

  // Calls add(texts) with the texts of a salt; where it has none, make() makes them.
  template <class Make, class Add>
  void add(std::string_view salt, const Make& make, const Add& add) {
    auto entry = entries_.find(salt);
    if (entry == entries_.end()) {
      entry = entries_.emplace(salt, Entry{.texts = make()}).first;
      used_bytes_ += bytes_of(entry->second.texts);
    }
    change(entry->second, add);
    entry->second.last_added = ++num_added_;
    while (num_texts_ > max_texts_) evict(&Texts::num_texts);
    while (num_texts_ > 0 && used_bytes_ > max_bytes_) evict(&Texts::used_bytes);
  }

  // The texts of a salt; null: there are none.
  const Texts* find(std::string_view salt) const {
    const auto entry = entries_.find(salt);
    return entry == entries_.end() ? nullptr : &entry->second.texts;
  }

  int num_texts() const { return num_texts_; }
  int64_t memory_bytes() const {
    int64_t bytes = 0;
    for (const auto& [salt, entry] : entries_) {
      bytes += static_cast<int64_t>(sizeof(typename Entries::value_type) + salt.size()) +
               entry.texts.memory_bytes();
    }
    return bytes;
  }

 private:
  struct Entry {
    Texts texts;
    int64_t last_added = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  static int64_t bytes_of(const Texts& texts) { return kTextsBytes + texts.used_bytes(); }

  template <class Change>
  void change(Entry& entry, const Change& change) {
    num_texts_ -= entry.texts.num_texts();
    used_bytes_ -= bytes_of(entry.texts);
    change(entry.texts);
    num_texts_ += entry.texts.num_texts();
    used_bytes_ += bytes_of(entry.texts);
  }

  template <class Size>
  void evict(Size (Texts::*size)() const) {
    auto most = entries_.begin();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const Size more = (entry->second.texts.*size)();
      const Size now = (most->second.texts.*size)();
      const bool is_older = entry->second.last_added < most->second.last_added;
      if (more > now || (more == now && is_older)) most = entry;
    }
    change(most->second, [](Texts& texts) { texts.evict_oldest(); });
    if (most->second.texts.num_texts() > 0) return;
    used_bytes_ -= bytes_of(most->second.texts);
    entries_.erase(most);
  }

  int max_texts_;
  int64_t max_bytes_;
  Entries entries_;  // none is empty
  int num_texts_ = 0;
  int64_t used_bytes_ = 0;  // bytes_of() of all
  int64_t num_added_ = 0;
};

}  // namespace specdec
