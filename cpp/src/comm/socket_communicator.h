// Ranks on several hosts, over TCP.
//
// Every rank is connected with every other, so that a part travels once and no rank forwards bytes;
// N - 1 connections per rank are few for the hosts of one engine. Each pair has a second connection
// that carries only the text of an abort, which any thread may send while the first connection is
// in the middle of a message. When it closes, the rank is gone.
//
// Connections are neither encrypted nor authenticated: use a network that only the engine's hosts
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

// Returns once all ranks have come. Rank 0 listens at `master`, where the others connect, for at
// most the timeout. Throws InvalidArgument("master_addr", "master_port", "world_size" or "rank")
// for an invalid address or a rank outside the group, and RankFailure("join") where a rank does not
// come in time. Rank 0 refuses peers that do not fit and goes on waiting.
std::unique_ptr<Communicator> join_socket_group(const SocketAddress& master, int rank, int size,
                                                std::chrono::milliseconds timeout);

}  // namespace specdec
