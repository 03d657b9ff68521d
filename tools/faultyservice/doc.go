// Package faultyservice is services that misbehave on purpose, to test what becomes of runs then.
//
// A [Service] is an ordinary service of the SDK that answers each item with its own payload, unless its [Config] says
// how it goes wrong: chunks with poison in them fail as a whole, so do chunks over a size; items over a rate are
// refused; chunks take longer the more of them there are; for a while nothing works. A [Liar] speaks the protocol
// itself, and answers what no service of the SDK would: items that it was not asked about, other runs' slices, counts
// that do not fit, garbage.
//
// Both write into a [Ledger] what they were asked and which of their faults they have shown. That is the view from
// outside: a test holds what the system says against it, and fails when the fault that it is about never came.
//
// A Config can be written as JSON, so that a service can be a process of its own. Services and ledgers are safe for
// concurrent use. Nothing here is meant for production.
package faultyservice
