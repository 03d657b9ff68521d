// Package wire is the protocol between nodes and services, as docs/protocol.md has it: subjects, headers, requests,
// replies, dead letters and their limits. Whoever speaks it without the SDK (a node, a test kit, a suite for services
// of other languages) begins here: [RequestBuilder] and [ParseRequest], [ParseReply], [ParseDeadLetter], [Discover].
//
// What comes from strangers is read with bounds on depth, count and decompressed size, and never panics the reader. A
// [MalformedError] says what is wrong with a message, and nothing of such a message may be used.
//
// The package keeps nothing and, but for [Discover], asks nobody. A RequestBuilder and a BodyReader are for one
// goroutine; everything else is a value or a function and safe for concurrent use.
package wire
