// Package pacing decides how fast an endpoint is asked: how many requests may be under way at once, how many items a
// second, and how many items a request holds. It learns that from what became of the requests before.
//
// A [Controller] is for one endpoint. Somebody looks at the endpoint about once a second and tells it what was seen, in
// a [Sample]; it answers with the [Change]s that follow, each with its reason in plain words.
//
//   - In flight: where nothing is known it begins low, and doubles as long as that brings more. The queue in front of
//     the services is kept shorter than a second, so that a small run need not wait behind a large one; services that
//     could do more get more; and services that get slower the more they have at once get less. The last two are found
//     by trying: a step up or down is kept when it pays.
//   - Rate: when services refuse work because it is too much, the rate becomes what they have just managed. Then it is
//     raised, carefully at first.
//   - Chunk: the size with the least time an item, of those that stay within the wanted time. A size that services do
//     not survive is left at once.
//
// One thing is tried at a time, so that what follows has one cause.
//
// Not its job: anything of I/O, and any limit that an operator sets. It has no clock: samples say when they were taken.
// A Controller is not safe for concurrent use.
package pacing
