// Command bench measures Tranche beside things that a reader knows, in one run on one private PostgreSQL cluster.
//
// The contestants:
//
//   - floor: what an engineer writes with pgx who only has to move the same bytes in and out of PostgreSQL over one
//     connection, with no coordination at all. It is the yardstick; see [floor] for its exact definition.
//   - floor-raw: the same with COPY encoded by hand, a stricter bar; see [floorRaw].
//   - tranche: one `tranche serve` and one echo service, each a process of its own; a CSV stream goes in by HTTP, the
//     clock stops when the run is completed and every result is stored; see [tranche].
//   - river: River with one job an item and its output recorded; see [riverQueue].
//   - latency: runs of one item, and of a few thousand, on an idle node.
//   - floor-gather: what the floor does, with three parts for each item; see [floorGather].
//   - gather: Tranche with a plan of three steps, a part of each for every item; see [gather].
//   - holes: a run that gathers and composes, and parts of it done again; see [holes].
//   - adaptive: settings that the node finds, beside the best of a sweep over fixed ones; see [adaptive].
//   - fair: small runs, alone and during a large one; see [fairness].
//   - many: thousands of small runs over two hundred endpoints beside a large one, with one node and with several; and
//     what an idle node takes while as many wait; see [many].
//   - old: a run on a database in which millions of items of finished runs lie, beside the same on one that has had a
//     single run, and the deletion of a run; only when it is named, since thirty million take 17 GB; see [old].
//   - misbehave: services that go wrong on purpose; see [isolation], [outageCase] and [otherCase].
//
// Rounds are interleaved (floor, tranche, river, floor, …), so that a noisy minute of the machine hits all alike, and
// every round starts with a fresh database and a checkpoint. Ratios are taken within a round. Tables show medians and
// ranges. Results are compared with the input after the clock, in SQL. Nothing here turns fsync or synchronous_commit
// off.
//
// It is no load generator and no tuning tool, and its numbers mean nothing across machines: only the ratios in one
// run do.
package main
