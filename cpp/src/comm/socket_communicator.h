// Ranks on several hosts, over TCP.
//
// Every rank is connected with every other, so that a part takes one way and no rank passes on
// others' bytes: N - 1 connections a rank are few for the hosts of one engine. A second connection
// of each pair has nothing but the text of an abort, which any thread may send while the first is
// in the middle of a message, and its end says that a rank is gone.
//
// Connections are neither encrypted nor authenticated: for a network that only the engine's hosts
// reach.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace specdec {

struct SocketAddress {
  std::string host;  // a name or an address of rank 0's host
  int port = 0;
};

// Returns once all ranks have come. Rank 0 listens at `master`, where the others find it, for as
// long as the timeout. Throws InvalidArgument("master_addr", "master_port", "world_size" or "rank")
// for an address that is none and a rank that does not fit in, RankFailure of "join" where a rank
// does not come in time. Rank 0 refuses whoever does not fit in and goes on waiting.
std::unique_ptr<Communicator> join_socket_group(const SocketAddress& master, int rank, int size,
                                                std::chrono::milliseconds timeout);

}  // namespace specdec
