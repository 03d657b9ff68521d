// Command bench measures Tranche beside two things a reader knows, in one run on one private PostgreSQL cluster.
//
// The contestants:
//
//   - floor: what one connection needs to move the same bytes in and out of PostgreSQL, with no coordination at all.
//     It is the yardstick; see [floor] for its exact definition.
//   - floor-pgx: the same by pgx.Conn.CopyFrom, the way most programs would write it.
//   - tranche: one `tranche serve` and one echo service, each a process of its own; a CSV stream goes in by HTTP, the
//     clock stops when the run is completed and every result is stored.
//   - river: River with one job an item and its output recorded.
//   - latency: runs of one item on an idle node.
//
// Rounds are interleaved (floor, tranche, river, floor, …), so that a noisy minute of the machine hits all alike, and
// every round starts with a fresh database and a checkpoint. Tables show the median and the range. Nothing here turns
// fsync or synchronous_commit off.
//
// It is no load generator and no tuning tool, and its numbers mean nothing across machines: only the ratios in one
// run do.
package main
